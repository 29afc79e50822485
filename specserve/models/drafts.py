"""Published drafts: heads, draft models and layers of the target itself, each with the page that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib import resources

from specserve.models.facts import ModelFacts

_AS_QUANTIZED = re.compile(
    r"[-_.](?:fp8|nvfp4|mxfp[48]|int[48]|awq|gptq|w[48]a(?:8|16)|quantized|dynamic|block|bf16|[48]bit)(?=[-_.]|$)",
    re.IGNORECASE,
)
"""A word of a repository's name that says how the weights are stored."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What the authors say of acceptance: `length` is tokens in a step, the target's own included."""

    workload: str
    k: int | None = None
    temperature: float | None = None
    length: float | None = None
    rate: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A public page, and its date if it shows one."""

    url: str
    date: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """One way to speculate for a target. Without `model`, the layers are in the target's own checkpoint.

    None is what no source says. `num_speculative_tokens` is what the authors trained for or recommend, `vllm` the
    first version that they name, `parameters` a count, `context` tokens.
    """

    target: str
    method: str
    sources: tuple[Source, ...]
    model: str | None = None
    num_speculative_tokens: int | None = None
    parallel_drafting: bool = False
    parameters: int | None = None
    context: int | None = None
    license: str | None = None
    vllm: str | None = None
    reported: tuple[Reported, ...] = ()
    note: str | None = None

    @property
    def length(self) -> float:
        """The highest mean acceptance length that is reported; 0 without one."""
        return max((each.length or 0 for each in self.reported), default=0)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Draft, ...]:
    """Every published draft that ships with specserve."""
    rows = json.loads(resources.files(__package__).joinpath("drafts.json").read_text(encoding="utf-8"))
    return tuple(
        Draft(
            **{
                **row,
                "sources": tuple(Source(**each) for each in row["sources"]),
                "reported": tuple(Reported(**each) for each in row.get("reported", ())),
            }
        )
        for row in rows
    )


def as_of() -> date:
    """The day on which the catalogue was last compared with its sources."""
    return date(2026, 11, 23)


def drafts_for(target: str) -> Sequence[Draft]:
    """The drafts for a target, or for the model that it is a quantized copy of.

    Layers of the target come first, then the drafts with the longest reported acceptance length.
    """
    name = plain_name(target)
    found = [draft for draft in catalogue() if plain_name(draft.target) == name]
    return sorted(found, key=lambda draft: (draft.model is not None, -draft.length, draft.model or ""))


def plain_name(model: str) -> str:
    """The repository's name in lower case, without its owner and without words for a quantization."""
    return _AS_QUANTIZED.sub("", model.rstrip("/").rpartition("/")[2]).lower()


def assumed_head(draft: Draft, target: ModelFacts) -> ModelFacts | None:
    """A head as most are trained: one layer as wide as the target's, and the 32,000 most frequent tokens.

    None for other methods than EAGLE-3. Source: SpecForge, configs/llama3-8B-eagle3.json and its siblings.
    """
    config = target.config
    inner = config.get("text_config")
    fields = {**config, **inner} if isinstance(inner, dict) else dict(config)
    if draft.method != "eagle3" or not isinstance(fields.get("hidden_size"), int):
        return None
    is_sparse = any(fields.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    width = fields["hidden_size"]
    kept = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "rms_norm_eps",
    )
    head = {
        **{key: fields[key] for key in kept if key in fields},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "intermediate_size": 4 * width if is_sparse else fields.get("intermediate_size", 4 * width),
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
        "max_position_embeddings": draft.context or fields.get("max_position_embeddings", 2048),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return ModelFacts(draft.model or target.model, "published", head)
