"""Ray: an application of Ray Serve LLM with the engine of the plan."""

from __future__ import annotations

from typing import Any

import yaml

from specserve.deploy.deployment import Deployment
from tests.deploy.conftest import ROOT, files_of, made_of

LLAMA = ROOT / "configs" / "llama70b-8b.yaml"


def config_of(made: Deployment) -> dict[str, Any]:
    application = yaml.safe_load(files_of("ray", made)["serve.yaml"])["applications"][0]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    found: dict[str, Any] = application["args"]["llm_configs"][0]
    return found


def test_several_nodes_need_no_ranks(two_nodes: Deployment) -> None:
    assert {"nnodes", "node_rank", "master_addr"} & set(config_of(two_nodes)["engine_kwargs"]) == set()
    assert config_of(two_nodes)["engine_kwargs"]["pipeline_parallel_size"] == 2


def test_paths_are_those_of_the_nodes(demo: Deployment) -> None:
    config = config_of(demo)
    assert config["model_loading_config"] == {"model_id": "demo", "model_source": "/models/wide"}
    assert config["engine_kwargs"]["speculative_config"]["model"] == "/models/draft"
    assert config["accelerator_config"] == {"kind": "cpu"}


def test_the_servers_arguments_and_environment_go_along() -> None:
    config = config_of(
        made_of(
            LLAMA,
            "frontend.enable_auto_tool_choice=true",
            "env.VLLM_LOGGING_LEVEL=DEBUG",
            'frontend.lora_modules=["sql=/data/sql", "org=org/one"]',
        )
    )
    assert config["engine_kwargs"]["lora_modules"] == ["sql=/models/sql", "org=org/one"]
    assert config["engine_kwargs"]["enable_auto_tool_choice"] is True
    assert config["runtime_env"] == {"env_vars": {"VLLM_LOGGING_LEVEL": "DEBUG"}}
