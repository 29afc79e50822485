"""How much vLLM takes: requests and tokens of a step, sizes of graphs, the longest sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specserve.vllm.facts import SMALL_GB10, at

CPU_DEFAULTS = (2048, 128)
"""(max_num_batched_tokens, max_num_seqs) on CPUs, for each rank, by `get_batch_defaults`."""
LEAST_SEQUENCES = 256
"""The smallest default of `max_num_seqs` on a GPU."""


def batch_defaults(
    version: str, *, gpu: str, gpu_bytes: int, compute_capability: tuple[int, int] | None
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on such GPUs.

    Source: vllm/engine/arg_utils.py, `get_batch_defaults`.
    """
    if gpu_bytes >= 160 * 2**30:
        return 16384, 1024
    is_small = "a100" in gpu.lower() or (compute_capability == (12, 1) and at(SMALL_GB10, version))
    return (8192, 1024) if gpu_bytes >= 70 * 2**30 and not is_small else (2048, 256)


def is_eager(engine: Mapping[str, Any]) -> bool:
    """Whether the arguments keep vLLM from capturing any CUDA graph."""
    inner = engine.get("compilation_config")
    inside = inner.get("cudagraph_mode") if isinstance(inner, Mapping) else None
    mode = engine.get("cudagraph_mode", inside)
    no_graphs = mode is not None and str(mode).upper() in ("NONE", "0")
    return engine.get("enforce_eager") is True or engine.get("optimization_level") == 0 or no_graphs


def capture_sizes(largest: int) -> list[int]:
    """The batches that vLLM captures graphs for, up to `largest` tokens."""
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]


ASSUMED = 2048
"""What vLLM assumes if config.json says nothing."""
_LONGEST = 1 << 40
_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LEGACY = {"su": "longrope", "mrope": "default"}
"""Source: `patch_legacy_rope_type` in vllm/transformers_utils/config.py."""
_MULTIPLIED_ALREADY = frozenset(
    {"longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)
"""Types of rotary positions whose factor is in the context of config.json already."""
_CACHE_ONLY = frozenset({"default", "linear", "llama3", "ntk", "proportional"})
"""Source: `_CACHE_ONLY_ROPE_TYPES` in vllm/config/speculative.py."""


@dataclass(frozen=True, slots=True)
class Length:
    """The context of a model, in tokens, if its config.json says it."""

    most: int
    """The largest `max_model_len` that vLLM accepts."""
    default: int
    """What vLLM serves if `max_model_len` is not given."""
    key: str
    """Where config.json says it."""


def context_length(config: Mapping[str, Any]) -> Length | None:
    """The context that vLLM derives from the language part of a config.json; None: unsaid.

    Source: vllm/config/model.py, `_get_and_verify_max_len`.
    """
    found = {key: length for key in _KEYS if (length := _length(config, key)) is not None}
    if not found:
        return None
    key = (
        "model_max_length"
        if "model_max_length" in found
        else min(found, key=lambda name: found[name])
    )
    derived, own = float(found[key]), found.get("model_max_length", 0)
    if "gemma3" not in str(config.get("model_type")):
        derived = _stretched(config, derived)
    default = int(derived)
    if any(rope_type(rope) == "longrope" for rope in ropes(config)):
        default = _length(config, "original_max_position_embeddings") or default
    return Length(max(int(derived), own), default, key)


def _stretched(config: Mapping[str, Any], length: float) -> float:
    """The length times the factor of the rotary positions, where vLLM multiplies by it."""
    factor = 1.0
    for rope in ropes(config):
        kind = rope_type(rope)
        if kind in _MULTIPLIED_ALREADY:
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
    """Whether longer positions need only a longer table, so that a head can get its target's."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(config))


def _length(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 0 < value < _LONGEST else None
