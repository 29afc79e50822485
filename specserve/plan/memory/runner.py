"""Which of vLLM's model runners a launch gets. Source: vllm/config/vllm.py 0.26-0.33, `use_v2_model_runner`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.plan.memory.constants import Runner, minor

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_V2_SINCE = (0, 32)
_V2_BEFORE = frozenset(
    {
        "DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "InklingForCausalLM", "InklingForConditionalGeneration",
        "LongcatFlashNgramForCausalLM", "Qwen2MoeForCausalLM",
    }
)  # fmt: skip
"""What 0.26 ran on V2 by itself."""


def runner(
    version: str,
    *,
    speculation: Mapping[str, Any] | None = None,
    architectures: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Runner:
    """`v1` or `v2` for a CUDA launch; `speculation` as vLLM's speculative_config."""
    keys = speculation or {}
    told = (env or {}).get(VARIABLE)
    if told is not None:
        return "v2" if told.strip().lower() in ("1", "true") else "v1"
    method = keys.get("method")
    if method == "dspark":
        return "v2"
    if minor(version) < _V2_SINCE and not _V2_BEFORE & set(architectures):
        return "v1"
    parallel = keys.get("parallel_drafting") and method != "dflash"
    unsupported = method in ("suffix", "custom_class") or parallel or keys.get("use_heterogeneous_vocab")
    return "v1" if unsupported else "v2"


def other_runner(version: str, *, speculation: Mapping[str, Any], env: Mapping[str, str]) -> Runner | None:
    """The one that a CUDA launch does not get and could be put on; None where it can have but one.

    Source: vllm/config/vllm.py 0.32-0.33, `_get_v1_model_runner_unsupported_features` and its like for V2.
    """
    now = runner(version, speculation=speculation, env=env)
    if now == "v2":
        only_v2 = speculation.get("method") == "dspark" or speculation.get("enable_adaptive_verification")
        return None if only_v2 else "v1"
    free = {name: value for name, value in env.items() if name != VARIABLE}
    return "v2" if runner(version, speculation=speculation, env=free) == "v2" else None
