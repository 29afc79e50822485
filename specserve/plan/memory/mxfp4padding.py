"""How much larger MXFP4 experts are on an accelerator than in the checkpoint: kernels want rounded sizes.

Source: vllm/model_executor/layers/fused_moe/oracle/mxfp4.py 0.32, `_get_priority_backends_for_gpt_oss` and
`mxfp4_round_up_hidden_size_and_intermediate_size`.
"""

from __future__ import annotations

from collections.abc import Mapping

from specserve.plan.memory.settings import Settings

_HOPPER = 9
_STEPS: Mapping[str, tuple[int, int]] = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 128),
    "triton": (256, 64),
    "triton_unfused": (256, 64),
    "flashinfer_cutlass": (128, 128),
    "cutlass": (128, 128),
    "deep_gemm": (128, 128),
    "aiter": (256, 256),
    "b12x": (1, 1),
    "emulation": (32, 32),
    "cpu": (32, 32),
}
"""What the backend rounds up to: the hidden size, and the intermediate size of one GPU.

Triton's hidden size is read from logs of gpt-oss on H100, 64.38 GiB (vllm-project/vllm#33155) and 13.47 GiB
(llm-d-incubation/llm-d-planner, docs/empirical-vllm-memory-results.md): its weight layout pads, not `create_weights`.
"""


def mxfp4_padding(hidden: int, intermediate: int, *, settings: Settings) -> float:
    """Elements of an expert on its GPUs, all together, for each one in the checkpoint."""
    inner = intermediate / (1 if settings.enable_expert_parallel else settings.tensor_parallel_size)
    step, inner_step = _STEPS.get(moe_backend(settings), _STEPS["marlin"])
    return _up(hidden, step) * _up(inner, inner_step) / (hidden * inner)


def moe_backend(settings: Settings) -> str:
    """The backend that the profile names, else the first that vLLM takes on this accelerator.

    Blackwell takes TRT-LLM of FlashInfer, which rounds as Marlin does.
    """
    if settings.moe_backend != "auto":
        return settings.moe_backend
    if settings.platform == "cpu":
        return "cpu"
    if settings.vendor != "nvidia":
        return "aiter"
    return "triton" if settings.compute_capability and settings.compute_capability[0] == _HOPPER else "marlin"


def _up(size: float, step: int) -> int:
    return step * int(-(-size // step))
