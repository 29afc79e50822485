"""vLLM plug-in that gives every request its own temperature, top-p and top-k under speculation on a CPU.

It knows one fault, vllm-project/vllm#55005, and nothing of specserve.
"""

import logging
from typing import Any

# Below "vllm", so that vLLM's own log settings (level, format, stream) hold for this line too.
logger = logging.getLogger("vllm.plugins.specserve_vllm_cpu")


def cure() -> None:
    """Replace vLLM's `_expand_kernel_impl` if it loses float values; the `vllm.general_plugins` entry point.

    vLLM calls this once in every process, before the worker's `register_triton_kernel_overrides` binds the
    function (vllm/v1/worker/worker_base.py, 0.32), so replacing the module's attribute reaches every caller.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from vllm.utils import cpu_triton_utils as kernels
    except ImportError:
        return
    original = getattr(kernels, "_expand_kernel_impl", None)
    if original is None or original is expand:
        return
    current_platform.import_kernels()  # the test below needs the C++ operators; a second import costs nothing
    if keeps_floats(original):
        return
    kernels._expand_kernel_impl = expand
    logger.info(
        "Replaced cpu_triton_utils._expand_kernel_impl: it loses the sampling parameters of requests "
        "at temperature > 0 with speculative decoding (vllm-project/vllm#55005)."
    )


def keeps_floats(kernel: Any) -> bool:
    """Say whether `kernel` repeats float values per request, on two requests of one and two tokens."""
    import torch

    output, totals = torch.full((3,), -1.0), torch.tensor([1, 3], dtype=torch.int32)
    try:
        kernel(output, torch.tensor([0.25, 0.0]), totals, 0, 1, MAX_NUM_TOKENS=2)
    except Exception:  # a changed signature or a missing operator is not the fault that this module knows
        logger.warning("Could not test cpu_triton_utils._expand_kernel_impl; left as it is.", exc_info=True)
        return True
    return bool(torch.equal(output, torch.tensor([0.25, 1.0, 1.0])))


def expand(
    output: Any,
    input_val: Any,
    cu_num_tokens: Any,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,  # vLLM's launcher passes it by this name or last
) -> None:
    """Write each request's value to all of its tokens, `replace_from` turned into `replace_to`.

    Shapes: `output` [num_tokens]; `input_val` and `cu_num_tokens` (running totals) [batch_size].
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output.copy_(torch.repeat_interleave(values, counts, output_size=output.shape[0]))
