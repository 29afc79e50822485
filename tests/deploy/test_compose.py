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
from tests.deploy.conftest import ROOT, files_of, made_of
from tests.deploy.schema import compose_problems

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"
PROFILES = sorted(file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_"))


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


def test_it_listens_inside_and_is_published_on_loopback(llama: Deployment) -> None:
    service = compose_of(llama)["services"]["vllm"]
    assert service["command"][service["command"].index("--host") + 1] == "0.0.0.0"
    published = [port for one in compose_of(llama)["services"].values() for port in one.get("ports", [])]
    assert published == ["127.0.0.1:8000:8000"]


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "0.0.0.0"), ("10.1.2.3", "10.1.2.3"), ("'::'", "[::]"), ("'::1'", "127.0.0.1")],
)
def test_it_is_published_at_the_address_that_the_profile_names(host: str, address: str) -> None:
    made = made_of(LLAMA, f"server.host={host}", "server.api_key_env=KEY")
    assert compose_of(made)["services"]["vllm"]["ports"] == [f"{address}:8000:8000"]


def test_a_port_that_is_to_be_free_is_one_inside_of_a_container() -> None:
    assert made_of(LLAMA, "server.port=0").plan.port == 8000


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
    assert seen_from("/home/me/models/llama", "/home/me/deploy/x") == "../../models/llama"
    assert seen_from("/home/me/deploy/x", "/home/me/deploy") == "./x"


def test_two_models_of_one_name_are_told_apart() -> None:
    made = made_of(LLAMA, "target.model=/a/model", "speculation.model=/b/model")
    assert [(mount.name, mount.path) for mount in made.mounts] == [
        ("model", "/a/model"),
        ("model-2", "/b/model"),
    ]


def test_an_unset_key_keeps_it_from_starting_open(llama: Deployment) -> None:
    assert compose_of(llama)["services"]["vllm"]["environment"]["VLLM_API_KEY"].startswith("${LLAMA_KEY:?")


def test_a_dollar_is_a_dollar() -> None:
    made = made_of(LLAMA, 'server.served_model_name="a$HOME"', 'env.NOTE="${X}"')
    service = compose_of(made)["services"]["vllm"]
    assert "a$$HOME" in service["command"]
    assert service["environment"]["NOTE"] == "$${X}"


def test_the_accelerators_are_those_of_the_profile() -> None:
    def devices(*settings: str) -> dict[str, Any]:
        service = compose_of(made_of(LLAMA, *settings))["services"]["vllm"]
        found: dict[str, Any] = service["deploy"]["resources"]["reservations"]["devices"][0]
        return found

    assert devices()["count"] == 4
    assert devices("hardware.devices=[4,5,6,7]")["device_ids"] == ["4", "5", "6", "7"]


def test_several_hosts_are_refused_with_a_way_out(two_nodes: Deployment) -> None:
    with pytest.raises(
        UsageError, match=": Docker Compose runs on one host, but this profile needs"
    ) as caught:
        files_of("compose", two_nodes)
    assert "kubernetes" in (caught.value.hint or "")
