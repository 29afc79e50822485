"""Compose, systemd and Ray, where a profile asks for other files than the golden ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.deploy.compose import seen_from
from specserve.deploy.deployment import Deployment
from specserve.errors import UsageError
from tests.deploy.conftest import LLAMA, PROFILES, compose_problems, files_of, made_of


def compose_of(made: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files_of("compose", made)["compose.yaml"])
    return found


@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_every_shipped_profile_gives_a_file_that_compose_takes(file: Path) -> None:
    found = compose_of(made_of(file))
    assert compose_problems(found) == []
    assert compose_problems({**found, "service": {}})


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"), ("'::1'", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("10.1.2.3", "10.1.2.3"),
        ("'::'", "[::]"), ("gpu7", "127.0.0.1"),
    ],
)  # fmt: skip
def test_compose_publishes_at_the_address_that_the_profile_names(host: str, address: str) -> None:
    made = made_of(LLAMA, f"server.host={host}", "server.port=0", "server.api_key_env=KEY")
    services = compose_of(made)["services"]
    command = services["vllm"]["command"]
    assert command[command.index("--host") + 1] == "0.0.0.0"
    assert [one.get("ports") for one in services.values()] == [None, [f"{address}:8000:8000"]]
    assert services["vllm"]["environment"]["VLLM_API_KEY"].startswith("${KEY:?")  # unset: no open server


def test_compose_mounts_folders_of_the_profile_beside_each_other(demo: Deployment) -> None:
    service = compose_of(demo)["services"]["vllm"]
    mounts = [volume for volume in service["volumes"] if isinstance(volume, dict)]
    assert [(mount["source"], mount["target"], mount["read_only"]) for mount in mounts] == [
        ("../../demo/wide", "/models/wide", True),
        ("../../demo/draft", "/models/draft", True),
    ]
    assert (service["working_dir"], service["command"][0]) == ("/models", "./wide")
    assert '"model": "./draft"' in service["command"][service["command"].index("--speculative-config") + 1]
    assert "deploy" not in service  # no accelerators
    assert seen_from("/data/models/llama", "/home/me/deploy") == "/data/models/llama"
    assert seen_from("/home/me/deploy/x", "/home/me/deploy") == "./x"


def test_compose_takes_the_accelerators_of_the_profile_on_one_host(two_nodes: Deployment) -> None:
    service = compose_of(made_of(LLAMA, "hardware.devices=[4,5,6,7]"))["services"]["vllm"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["4", "5", "6", "7"]
    with pytest.raises(UsageError, match=": Docker Compose runs on one host") as caught:
        files_of("compose", two_nodes)
    assert "kubernetes" in (caught.value.hint or "")


def lines_of(made: Deployment) -> list[str]:
    (text,) = files_of("systemd", made).values()
    return text.splitlines()


def value_of(lines: list[str], key: str) -> str:
    return next(line for line in lines if line.startswith(f"{key}=")).partition("=")[2]


def test_a_unit_asks_where_the_server_listens_and_finds_its_folders_in_one_place(demo: Deployment) -> None:
    lines = lines_of(replace(demo, host="0.0.0.0"))
    assert "http://127.0.0.1:8000/health" in value_of(lines, "ExecStartPost")
    assert {"PrivateDevices=yes", "WorkingDirectory=/srv/models"} <= {*lines}
    assert any("/srv/models must hold `wide`, `draft`" in line for line in lines)
    secured = lines_of(made_of(LLAMA, "frontend.ssl_certfile=/etc/cert.pem"))
    assert "curl -fsS -k -m 5 -o /dev/null https://" in value_of(secured, "ExecStartPost")


def test_a_unit_without_secrets_may_have_a_token_and_names_its_devices() -> None:
    lines = lines_of(made_of(LLAMA, "hardware.devices=[4,5,6,7]"))
    assert "EnvironmentFile=-/etc/specserve/llama70b-8b.env" in lines
    assert "Environment=CUDA_VISIBLE_DEVICES=4,5,6,7" in lines


def test_each_node_has_a_unit_and_learns_where_the_first_is(two_nodes: Deployment) -> None:
    files = files_of("systemd", two_nodes)
    assert sorted(files) == ["llama70b-8b-node0.service", "llama70b-8b-node1.service"]
    first, second = (text.splitlines() for text in files.values())
    end = "--master-addr ${MASTER_ADDR} --master-port 29501 --headless"
    assert value_of(second, "ExecStart").endswith(end)
    assert any(line.startswith("ExecStartPost=") for line in first)
    assert not any(line.startswith("ExecStartPost=") for line in second)  # it answers nobody


def ray_of(made: Deployment) -> dict[str, Any]:
    application = yaml.safe_load(files_of("ray", made)["serve.yaml"])["applications"][0]
    found: dict[str, Any] = application["args"]["llm_configs"][0]
    return found


def test_ray_spreads_the_ranks_itself_and_finds_paths_on_its_nodes(
    demo: Deployment, two_nodes: Deployment
) -> None:
    assert {"nnodes", "node_rank", "master_addr"} & set(ray_of(two_nodes)["engine_kwargs"]) == set()
    assert ray_of(two_nodes)["engine_kwargs"]["pipeline_parallel_size"] == 2
    config = ray_of(demo)
    assert config["model_loading_config"] == {"model_id": "demo", "model_source": "/models/wide"}
    assert config["engine_kwargs"]["speculative_config"]["model"] == "/models/draft"
    assert config["accelerator_config"] == {"kind": "cpu"}
    assert "# /models of every node must hold `wide`, `draft`." in files_of("ray", demo)["serve.yaml"]


def test_ray_gets_the_servers_arguments_and_environment() -> None:
    adapters = 'frontend.lora_modules=["sql=/data/sql", "org=org/one"]'
    more = ("frontend.enable_auto_tool_choice=true", "env.VLLM_LOGGING_LEVEL=DEBUG")
    config = ray_of(made_of(LLAMA, adapters, *more))
    assert config["engine_kwargs"]["lora_modules"] == ["sql=/models/sql", "org=org/one"]
    assert config["engine_kwargs"]["enable_auto_tool_choice"] is True
    assert config["runtime_env"] == {"env_vars": {"VLLM_LOGGING_LEVEL": "DEBUG"}}
