"""Ray's own models take what is rendered; skipped where Ray Serve LLM is not installed beside specserve."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import ROOT, files_of, made_of

PROFILES = sorted(file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_"))


@pytest.mark.vllm
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_ray_serve_llm_loads_the_application(file: Path) -> None:
    schema = pytest.importorskip("ray.serve.schema", reason="ray[serve,llm] is not installed")
    llm = pytest.importorskip("ray.serve.llm", reason="ray[serve,llm] is not installed")
    made = made_of(file)
    content = yaml.safe_load(files_of("ray", made)["serve.yaml"])
    application = schema.ServeDeploySchema.model_validate(content).applications[0]
    config = llm.LLMServingArgs(**application.args).llm_configs[0]
    kwargs = config.get_engine_config().get_initialization_kwargs()
    assert kwargs.get("speculative_config") == content["applications"][0]["args"]["llm_configs"][0][
        "engine_kwargs"
    ].get("speculative_config")
    # Ray gives a CPU to vLLM's own executor
    assert kwargs["distributed_executor_backend"] == ("mp" if made.is_cpu else "ray")
