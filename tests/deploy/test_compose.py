"""Compose: one host, loopback, the exact command."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.deploy.compose import seen_from
from specserve.deploy.deployment import Deployment
from specserve.errors import UsageError
from tests.deploy.conftest import PROFILES, ROOT, files_of, made_of
from tests.deploy.schema import compose_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"


def compose_of(made: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files_of("compose", made)["compose.yaml"])
    return found


@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_every_shipped_profile_gives_a_compose_file(file: Path) -> None:
    assert compose_problems(compose_of(made_of(file))) == []


def test_the_schema_refuses_what_compose_would(llama: Deployment) -> None:
    good = compose_of(llama)
    changes: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda service: service.update(shm="8gb"),
        lambda service: service.update(read_only=["yes"]),
        lambda service: service["healthcheck"].update(start=1),
    )
    for change in changes:
        bad = copy.deepcopy(good)
        change(bad["services"]["vllm"])
        assert compose_problems(bad)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"), ("'::1'", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("10.1.2.3", "10.1.2.3"),
        ("'::'", "[::]"),
    ],
)  # fmt: skip
def test_it_is_published_at_the_address_that_the_profile_names(host: str, address: str) -> None:
    made = made_of(LLAMA, f"server.host={host}", "server.port=0", "server.api_key_env=KEY")
    services = compose_of(made)["services"]
    command = services["vllm"]["command"]
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert [one.get("ports") for one in services.values()] == [None, [f"{address}:8000:8000"]]
    assert services["vllm"]["environment"]["VLLM_API_KEY"].startswith("${KEY:?")  # unset: no open server


def test_folders_of_the_profile_are_mounted_read_only_beside_each_other(demo: Deployment) -> None:
    service = compose_of(demo)["services"]["vllm"]
    mounts = [volume for volume in service["volumes"] if isinstance(volume, dict)]
    assert [(mount["source"], mount["target"], mount["read_only"]) for mount in mounts] == [
        ("../../demo/wide", "/models/wide", True),
        ("../../demo/draft", "/models/draft", True),
    ]
    assert service["working_dir"] == "/models"
    assert service["command"][0] == "./wide"
    assert '"model": "./draft"' in service["command"][service["command"].index("--speculative-config") + 1]


def test_a_path_outside_of_the_tree_stays_as_it_is() -> None:
    assert seen_from("/data/models/llama", "/home/me/deploy") == "/data/models/llama"
    assert seen_from("/home/me/deploy/x", "/home/me/deploy") == "./x"


def test_the_accelerators_are_those_of_the_profile() -> None:
    def devices(*settings: str) -> dict[str, Any]:
        service = compose_of(made_of(LLAMA, *settings))["services"]["vllm"]
        found: dict[str, Any] = service["deploy"]["resources"]["reservations"]["devices"][0]
        return found

    assert devices()["count"] == 4
    assert devices("hardware.devices=[4,5,6,7]")["device_ids"] == ["4", "5", "6", "7"]


def test_several_hosts_are_refused_with_a_way_out(two_nodes: Deployment) -> None:
    with pytest.raises(UsageError, match=": Docker Compose runs on one host") as caught:
        files_of("compose", two_nodes)
    assert "kubernetes" in (caught.value.hint or "")
