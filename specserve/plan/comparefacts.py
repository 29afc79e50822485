"""Models and memory side by side, in the words of config.json and of the memory estimate. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.models.facts import ModelFacts
from specserve.plan.compare import Written
from specserve.plan.memory.estimate import Interval, MemoryEstimate

_SHAPE = (
    "model_type",
    "vocab_size",
    "draft_vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "max_position_embeddings",
    "sliding_window",
    "tie_word_embeddings",
)


def model_values(role: str, facts: ModelFacts) -> dict[str, Written]:
    """What tells two models apart, by `target.…` or `draft.…`; sizes in bytes of the checkpoint."""
    text = facts.config.get("text_config")
    config: Mapping[str, Any] = {**facts.config, **(text if isinstance(text, Mapping) else {})}
    quantization = config.get("quantization_config")
    found: dict[str, Any] = {
        "model": facts.model,
        "commit": facts.commit,
        "architectures": ", ".join(facts.architectures) or None,
        **{name: config.get(name) for name in _SHAPE},
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "quant_method": quantization.get("quant_method") if isinstance(quantization, Mapping) else None,
        "checkpoint_bytes": _checkpoint_bytes(facts),
    }
    return {f"{role}.{key}": Written(value) for key, value in found.items() if value is not None}


def _checkpoint_bytes(facts: ModelFacts) -> int | None:
    try:
        return sum(tensor.size_bytes for tensor in facts.tensors.values()) if facts.tensors else None
    except KeyError:  # a type of number that this specserve does not know
        return None


def memory_values(estimate: MemoryEstimate) -> dict[str, Written]:
    """The estimate's figures by name: bytes are those of the fullest GPU, intervals have two ends; None: not known."""
    gpu = estimate.per_gpu_bytes
    exact: dict[str, Any] = {
        "verdict": estimate.verdict,
        "total_bytes": gpu.total,
        "budget_bytes": gpu.budget,
        "target_weights_bytes": gpu.target_weights,
        "draft_weights_bytes": None if estimate.unknown_draft else gpu.draft_weights,
        "target_kv_bytes_per_token": estimate.target_kv_bytes_per_token,
        "draft_kv_bytes_per_token": None if estimate.unknown_draft else estimate.draft_kv_bytes_per_token,
        "max_model_len": estimate.max_model_len,
    }
    bounds = {
        "activation_bytes": gpu.activation,
        "other_bytes": gpu.other,
        "kv_cache_bytes": gpu.kv_cache,
        "kv_cache_tokens": estimate.kv_cache_tokens,
        "max_concurrency": estimate.max_concurrency,
        "largest_max_model_len": estimate.largest_max_model_len,
    }
    exact |= {name: _ends(name, interval) for name, interval in bounds.items()}
    return {name: Written(value) for name, value in exact.items()}


def _ends(name: str, interval: Interval) -> dict[str, float | int]:
    if name == "max_concurrency":
        return {"low": round(interval.low, 2), "high": round(interval.high, 2)}
    return {"low": int(interval.low), "high": int(interval.high)}
