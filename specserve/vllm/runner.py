"""Which of vLLM's two model runners serves: `use_v2_model_runner` in vllm/config/vllm.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from specserve.vllm import facts
from specserve.vllm.speculation import BLOCK_DRAFTS

Name = Literal["V1", "V2"]
SWITCH = "VLLM_USE_V2_MODEL_RUNNER"


def which_runner(
    version: str,
    *,
    arguments: Mapping[str, Any],
    speculation: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    platform: Literal["cpu", "cuda"] = "cuda",
) -> Name:
    """The runner that vLLM takes.

    `arguments`: engine arguments by vLLM's names, `tensor_parallel_size` and the like among them;
    `speculation`: the speculative block.
    """
    block, attention = speculation or {}, arguments.get("attention_config")
    hisparse = attention.get("hisparse_config") if isinstance(attention, Mapping) else None
    if hisparse is not None or arguments.get("watermark_config") is not None:
        return "V2"  # whatever the environment says
    if (asked := env_switch(env or {})) is not None:
        return "V2" if asked else "V1"
    method = block.get("method")
    # what V2 lacks: `_get_v2_model_runner_unsupported_features`
    if (
        platform == "cpu"  # it has no Triton
        or method in facts.V2_LACKS_METHODS.at(version)
        or (block.get("parallel_drafting") is True and method not in BLOCK_DRAFTS)
        or (
            block.get("use_heterogeneous_vocab") is True
            and facts.V2_LACKS_OTHER_VOCABULARY.at(version)
        )
        or arguments.get("enable_dbo") is True
        or _above_one(arguments, "ubatch_size")
        or (
            arguments.get("distributed_executor_backend") == "external_launcher"
            and _above_one(arguments, "pipeline_parallel_size")
        )
    ):
        return "V1"
    return "V2"


def env_switch(env: Mapping[str, str]) -> bool | None:
    """What the environment says about the runner; None if it says nothing that vLLM can read.

    Source: `maybe_convert_bool` in vllm/envs.py, `return bool(int(value))`.
    """
    text = env.get(SWITCH)
    try:
        return None if text is None else bool(int(text))
    except ValueError:
        return None


def _above_one(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments.get(name)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1
