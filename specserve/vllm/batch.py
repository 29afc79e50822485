"""What a step of vLLM holds: requests and tokens by default, and the sizes that CUDA graphs are captured for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specserve.vllm.facts import LARGEST_STEP, SMALL_GB10

CPU_DEFAULTS = (2048, 128)
"""(max_num_batched_tokens, max_num_seqs) on CPUs, for each rank. Source: `get_batch_defaults` in arg_utils.py."""
LEAST_SEQUENCES = 256
"""The smallest default of `max_num_seqs` on a GPU."""


def batch_defaults(
    version: str, *, gpu: str, gpu_bytes: int, compute_capability: tuple[int, int] | None
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on GPUs of this name, memory and architecture.

    Source: vllm/engine/arg_utils.py, `get_batch_defaults`.
    """
    if gpu_bytes >= 160 * 2**30 and LARGEST_STEP.at(version):
        return 16384, 1024
    is_small = "a100" in gpu.lower() or (compute_capability == (12, 1) and SMALL_GB10.at(version))
    return (8192, 1024) if gpu_bytes >= 70 * 2**30 and not is_small else (2048, 256)


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
        decode = {count * decode_tokens for count in (*capture_sizes(requests), requests)}
        pieces = {*capture_sizes(most), *(size for size in decode if size <= most)}
    else:
        decode = pieces = {size for size in sizes if size <= max_num_batched_tokens}
    full = sum(size <= most for size in decode if size <= max_num_seqs * decode_tokens) * tiers
    return Captured(len(pieces) + whole * full * (2 if drafts else 1), max(pieces, default=0))


def capture_sizes(largest: int) -> list[int]:
    """The batches that vLLM captures graphs for, up to `largest` tokens."""
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
