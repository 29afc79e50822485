"""vLLM's defaults that depend on the machine. Source: vllm/engine/arg_utils.py 0.32, `get_batch_defaults`."""

from __future__ import annotations

from specserve.facts.accelerators import Machine

GPU_MEMORY_UTILIZATION = 0.92
"""Source: vllm/config/cache.py 0.26-0.33; 0.9 before 0.22."""
_GIB = 2**30


def batch_defaults(machine: Machine, *, world_size: int = 1) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on this machine."""
    kind = machine.accelerator
    if machine.is_cpu:
        return 2048 * world_size, 128 * world_size
    if kind.total_bytes >= 160 * _GIB:
        return 16384, 1024
    if kind.total_bytes >= 70 * _GIB and "a100" not in kind.name.lower():
        return 8192, 1024
    return 2048, 256


def gpu_memory_utilization(version: tuple[int, int]) -> float:
    """The share of the memory that vLLM takes where it is not told."""
    return GPU_MEMORY_UTILIZATION if version >= (0, 22) else 0.9


def capture_sizes(
    *, max_num_seqs: int, decode_tokens: int = 1, tiers: int = 1, blackwell: bool = False
) -> int:
    """How many sizes CUDA graphs are captured for. Source: vllm/config/vllm.py 0.32, `_set_cudagraph_sizes`.

    `decode_tokens`: tokens of one request in a decode step, 1 + K; `tiers`: different K of a schedule.
    """
    ceiling = 1024 if blackwell else 512
    sizes = _sizes(min(2 * max_num_seqs * decode_tokens, ceiling))
    # those of a step with drafts are captured as whole graphs only, and not in pieces too
    return sizes + (tiers * _sizes(min(max_num_seqs, ceiling)) // 2 if decode_tokens > 1 else 0)


def _sizes(largest: int) -> int:
    small = sum(size <= largest for size in (1, 2, 4))
    return small + len(range(8, min(largest + 1, 256), 8)) + len(range(256, largest + 1, 16))
