"""vLLM's defaults that depend on the machine. Source: vllm/engine/arg_utils.py 0.32, `get_batch_defaults`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specserve.hardware.accelerators import Machine

GPU_MEMORY_UTILIZATION = 0.92
"""The share of the memory that vLLM takes unless it is told. Source: vllm/config/cache.py."""
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


class Captured(NamedTuple):
    """The CUDA graphs of a launch."""

    graphs: int
    largest: int
    """Tokens of the largest captured batch."""


NO_GRAPHS = Captured(0, 0)


def captured_graphs(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    decode_tokens: int = 1,
    tiers: int = 1,
    drafts: bool = False,
    sizes: Sequence[int] | None = None,
    largest: int | None = None,
    whole: bool = True,
    blackwell: bool = False,
) -> Captured:
    """How many graphs vLLM captures, and for how many tokens at most.

    In pieces for every size, whole for those that a decode step can have; whole once more for the draft's own steps.
    `decode_tokens`: tokens of one request in a decode step, 1 + K; `tiers`: different K of a schedule; `drafts`: a
    draft network runs; `sizes`, `largest`, `whole`: what the profile sets. Source: vllm/config/vllm.py 0.32,
    `_set_cudagraph_sizes`.
    """
    ceiling = 1024 if blackwell else 512
    most = min(largest or min(2 * max_num_seqs * decode_tokens, ceiling), max_num_batched_tokens)
    if sizes is None:
        requests = min(max_num_seqs, ceiling)
        decode = {count * decode_tokens for count in (*_grid(requests), requests)}
        pieces = {*_grid(most), *(size for size in decode if size <= most)}
    else:
        decode = pieces = {size for size in sizes if size <= max_num_batched_tokens}
    full = sum(size <= most for size in decode if size <= max_num_seqs * decode_tokens) * tiers
    return Captured(len(pieces) + whole * full * (2 if drafts else 1), max(pieces, default=0))


def _grid(largest: int) -> list[int]:
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
