"""What is known of two profiles, side by side: their models and the memory they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specserve.checks.gather import Gathered, Wanted, gather
from specserve.errors import FactError
from specserve.memory.estimate import Bounds as Interval
from specserve.memory.estimate import MemoryEstimate
from specserve.models.facts import ModelFacts
from specserve.plan.compare import Difference, Written, differences
from specserve.profile.schema import Profile

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


Differences = tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class At:
    """A profile and the vLLM version it is looked at for; `locked`: with what its lock holds, and nothing else."""

    profile: Profile
    version: str
    locked: bool = False


def compare_known(a: At, b: At) -> tuple[Differences | None, Differences | None, list[str]]:
    """What differs of the models and of the memory, None where it is not known of both; and why it is not."""
    why: dict[str, None] = {}
    left, right = _known(a, why), _known(b, why)
    if left is None or right is None:
        return None, None, list(why)
    models = _models(left, right)
    memory = _memory(left, right, why)
    return models, memory, list(why)


def _known(side: At, why: dict[str, None]) -> Gathered | None:
    """The profile's models and memory without its alternatives; None where a model of it could not be read."""
    version = ".".join(side.version.split(".")[:2])
    wanted = Wanted(offline=True, version=version, locked=side.locked, no_lock=not side.locked)
    try:
        known = gather(replace(side.profile, alternatives={}), wanted=wanted)
    except FactError as error:
        why[error.message] = None
        return None
    why.update(dict.fromkeys(item.error.message for item in known.unread))
    return None if known.unread else known


def _models(a: Gathered, b: Gathered) -> Differences:
    left, right = dict[str, Written](), dict[str, Written]()
    targets = a.context.target, b.context.target
    drafts = _draft(a), _draft(b)
    for role, (one, other) in (("target", targets), ("draft", drafts)):
        for values, facts, counterpart in ((left, one, other), (right, other, one)):
            if facts:
                every = model_values(role, facts)
                # of a model that only one side has, the name says enough
                values.update(every if counterpart else {f"{role}.model": every[f"{role}.model"]})
    return differences(left, right)


def _draft(known: Gathered) -> ModelFacts | None:
    return known.context.arms[0].draft if known.context.arms else None


def _estimate(known: Gathered) -> MemoryEstimate | None:
    return known.context.arms[0].memory if known.context.arms else known.context.memory


def _memory(a: Gathered, b: Gathered, why: dict[str, None]) -> Differences | None:
    estimates = [_estimate(known) for known in (a, b)]
    left, right = estimates
    if left is None or right is None:
        why.update(dict.fromkeys(reason for known in (a, b) for reason in known.missing.values()))
        return None
    return differences(memory_values(left), memory_values(right))
