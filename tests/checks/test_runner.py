"""The two model runners: which one serves, as vLLM's own lines have it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import choice
from specserve.profile.schema import Hardware, Profile, Speculation, Target
from specserve.vllm.runner import env_switch
from tests.checks.vllmlines import function, minor

Load = Callable[[str], Profile]
METHODS = (
    "draft_model",
    "ngram",
    "ngram_gpu",
    "suffix",
    "eagle",
    "eagle3",
    "mtp",
    "dflash",
    "dspark",
    "custom_class",
)


def made(
    method: str = "eagle3", *, env: str | None = None, accelerator: str | None = None, stages: int = 1,
    keys: dict[str, Any] | None = None, **engine: Any,
) -> tuple[Profile, Speculation]:  # fmt: skip
    block = Speculation(method, {"method": method, "num_speculative_tokens": 2, **(keys or {})})
    profile = Profile(
        "p.yaml", "p", Target("org/t", pipeline_parallel_size=stages), speculation=block, engine=engine,
        hardware=Hardware(accelerator) if accelerator else None,
        env={"VLLM_USE_V2_MODEL_RUNNER": env} if env is not None else {},
    )  # fmt: skip
    return profile, block


@pytest.mark.parametrize(
    ("text", "meaning"), [("1", True), ("0", False), ("2", True), ("true", None), ("", None), ("yes", None)]
)
def test_the_switch_is_read_as_vllm_reads_it(text: str, meaning: bool | None) -> None:
    assert env_switch(made(env=text)[0].env) is meaning


@pytest.mark.vllm
@given(
    method=st.sampled_from(METHODS), parallel=st.booleans(), other=st.booleans(), dbo=st.booleans(),
    stages=st.sampled_from((1, 2)), launcher=st.sampled_from((None, "mp", "external_launcher")),
)  # fmt: skip
def test_what_v2_lacks_is_what_vllm_s_own_lines_say(
    method: str, parallel: bool, other: bool, dbo: bool, stages: int, launcher: str | None
) -> None:
    keys = {"parallel_drafting": parallel, "use_heterogeneous_vocab": other}
    engine: dict[str, Any] = {"enable_dbo": dbo, "distributed_executor_backend": launcher}
    profile, block = made(method, stages=stages, keys=keys, **engine)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, enable_adaptive_verification=False, **keys),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages,
            distributed_executor_backend=launcher,
            use_ubatching=dbo,
            enable_dbo=dbo,
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_elastic_ep=False,
        ),
        model_config=None,
        compilation_config=SimpleNamespace(mode=None, pass_config=SimpleNamespace(enable_sp=False)),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False, mamba_cache_mode="none"),
        ec_transfer_config=None,
        _get_dbo_unsupported_features=lambda: ["dual batch overlap with speculative decoding"],
    )
    mode = SimpleNamespace(STOCK_TORCH_COMPILE="stock")
    lacked = function("config/vllm.py", "_get_v2_model_runner_unsupported_features", CompilationMode=mode)
    assert choice(profile, block, version=minor()) == ("V1" if lacked(config) else "V2")
