"""How much vLLM takes: requests and tokens of a step, sizes of graphs, the longest sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specserve.vllm.facts import SMALL_GB10, at

CPU_DEFAULTS = (2048, 128)
"""(max_num_batched_tokens, max_num_seqs) on CPUs, for each rank, by `get_batch_defaults`."""


def batch_defaults(
    version: str, *, gpu: str, gpu_bytes: int, capability: tuple[int, int] | None
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on such GPUs.

    Source: vllm/engine/arg_utils.py, `get_batch_defaults`.
    """
    if gpu_bytes >= 160 * 2**30:
        return 16384, 1024
    is_small = "a100" in gpu.lower() or (capability == (12, 1) and at(SMALL_GB10, version))
    return (8192, 1024) if gpu_bytes >= 70 * 2**30 and not is_small else (2048, 256)


def is_eager(engine: Mapping[str, Any]) -> bool:
    """Whether the arguments keep vLLM from capturing any CUDA graph."""
    inner = engine.get("compilation_config")
    inside = inner.get("cudagraph_mode") if isinstance(inner, Mapping) else None
    mode = engine.get("cudagraph_mode", inside)
    no_graphs = mode is not None and str(mode).upper() in ("NONE", "0")
    return engine.get("enforce_eager") is True or engine.get("optimization_level") == 0 or no_graphs


ASSUMED = 2048
"""What vLLM assumes if config.json says nothing."""
_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
_LONGROPE = ("longrope", "su")
_MULTIPLIED_ALREADY = ("llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Types of rotary positions whose factor is in the context of config.json already."""
_CACHE_ONLY = ("default", "mrope", "linear", "llama3", "ntk", "proportional")
"""Source: `_CACHE_ONLY_ROPE_TYPES` in vllm/config/speculative.py."""


def context_length(config: Mapping[str, Any]) -> int | None:
    """The tokens that vLLM serves by the language part of a config.json; None: it does not say.

    Source: vllm/config/model.py, `_get_and_verify_max_len`.
    """
    lengths = [length for key in _KEYS if (length := _length(config.get(key)))]
    if not lengths:
        return None
    length, factor = min(lengths), 1.0
    for rope in ropes(config):
        value = rope.get("factor", factor)
        if rope_type(rope) in _LONGROPE:
            return _length(config.get("original_max_position_embeddings")) or length
        if rope_type(rope) not in _MULTIPLIED_ALREADY:
            factor = value if isinstance(value, (int, float)) and 0 < value < 2**20 else 1.0
    return length if "gemma3" in str(config.get("model_type")) else int(length * factor)


def ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            yield from [item for item in value.values() if isinstance(item, Mapping)] or [value]


def rope_type(rope: Mapping[str, Any]) -> str:
    """Its type, `default` if it names none."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def only_sizes_cache(config: Mapping[str, Any]) -> bool:
    """Whether longer positions need only a longer table, so that a head can get its target's."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(config))


def _length(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 40 else None
