"""How much vLLM takes: requests and tokens of a step, captured CUDA graphs, the longest sequence of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specserve.vllm.facts import ROPES_NOT_MULTIPLIED, SMALL_GB10

CPU_DEFAULTS = (2048, 128)
"""(max_num_batched_tokens, max_num_seqs) on CPUs, for each rank. Source: `get_batch_defaults` in arg_utils.py."""
SCHEDULE = "num_speculative_tokens_per_batch_size"
LEAST_SEQUENCES = 256
"""The smallest default of `max_num_seqs` on a GPU."""


def batch_defaults(
    version: str, *, gpu: str, gpu_bytes: int, compute_capability: tuple[int, int] | None
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on GPUs of this name, memory and architecture.

    Source: vllm/engine/arg_utils.py, `get_batch_defaults`.
    """
    if gpu_bytes >= 160 * 2**30:
        return 16384, 1024
    is_small = "a100" in gpu.lower() or (compute_capability == (12, 1) and SMALL_GB10.at(version))
    return (8192, 1024) if gpu_bytes >= 70 * 2**30 and not is_small else (2048, 256)


def graph_setting(engine: Mapping[str, Any], name: str) -> Any:
    """An argument that may also stand in `compilation_config`."""
    compilation = engine.get("compilation_config")
    return engine.get(name, compilation.get(name) if isinstance(compilation, Mapping) else None)


def _graph_mode(engine: Mapping[str, Any]) -> str | None:
    """`cudagraph_mode` in capitals, or as its number; None: vLLM's default."""
    mode = graph_setting(engine, "cudagraph_mode")
    return None if mode is None else str(mode).upper()


def is_eager(engine: Mapping[str, Any]) -> bool:
    """Whether the arguments keep vLLM from capturing any CUDA graph."""
    no_graphs = _graph_mode(engine) in ("NONE", "0")
    return engine.get("enforce_eager") is True or engine.get("optimization_level") == 0 or no_graphs


def has_full_graphs(engine: Mapping[str, Any], *, runner: str, keys: Mapping[str, Any]) -> bool:
    """Whether the arguments let vLLM capture whole steps, and not only the pieces between attention layers.

    `runner`: `v1`, `v2` or `cpu`; `keys`: of the block of speculation.

    Source: vllm/config/vllm.py 0.32, `OPTIMIZATION_LEVEL_01` and `_maybe_override_dynamic_sd_cudagraph_mode`.
    """
    if runner == "cpu" or is_eager(engine) or (runner == "v1" and keys.get(SCHEDULE)):
        return False
    mode = _graph_mode(engine)
    return mode not in ("PIECEWISE", "1") if mode else engine.get("optimization_level") != 1


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


ASSUMED = 2048
"""What vLLM assumes if config.json says nothing."""
_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LEGACY = {"su": "longrope", "mrope": "default"}
"""Source: `patch_legacy_rope_type` in vllm/transformers_utils/config.py."""
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Source: `_CACHE_ONLY_ROPE_TYPES` in vllm/config/speculative.py."""


@dataclass(frozen=True, slots=True)
class Length:
    """The context of a model, in tokens, if its config.json says it."""

    most: int
    """The largest `max_model_len` that vLLM accepts without being told to ignore the model's limit."""
    default: int
    """What vLLM serves if `max_model_len` is not given."""
    key: str
    """Where config.json says it."""


def context_length(config: Mapping[str, Any], version: str) -> Length | None:
    """The context that a version derives from the language part of a config.json; None if it does not say it.

    Source: vllm/config/model.py, `_get_and_verify_max_len`.
    """
    found = {key: length for key in _KEYS if (length := _length(config, key)) is not None}
    if not found:
        return None
    key = "model_max_length" if "model_max_length" in found else min(found, key=lambda name: found[name])
    derived, own = float(found[key]), found.get("model_max_length", 0)
    if "gemma3" not in str(config.get("model_type")):
        derived = _stretched(config, derived, version)
    default = int(derived)
    if any(rope_type(rope) == "longrope" for rope in ropes(config)):
        default = _length(config, "original_max_position_embeddings") or default
    return Length(max(int(derived), own), default, key)


def _stretched(config: Mapping[str, Any], length: float, version: str) -> float:
    """The length times the factor of the rotary positions, if this version multiplies by it."""
    factor = 1.0
    for rope in ropes(config):
        kind = rope_type(rope)
        if kind in ROPES_NOT_MULTIPLIED.at(version):
            continue
        value = rope.get("factor", factor)
        factor = value if isinstance(value, (int, float)) and 0 < value < 2**20 else 1.0
        if kind == "yarn":
            original = _length(config, "original_max_position_embeddings")
            length = original or _length(rope, "original_max_position_embeddings") or length
    return length * factor


def ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            yield from [item for item in value.values() if isinstance(item, Mapping)] or [value]


def rope_type(rope: Mapping[str, Any]) -> str:
    """Its type by today's name, `default` if it names none."""
    name = str(rope.get("rope_type") or rope.get("type") or "default")
    return _LEGACY.get(name, name)


def only_sizes_cache(config: Mapping[str, Any]) -> bool:
    """Whether longer positions need no more than a longer table, so that a head can get those of its target."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(config))


def _length(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
