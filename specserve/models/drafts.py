"""Published drafts: heads, draft models, layers of the target; each with the page that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from specserve.models.config import EXPERTS, integer, text_config, whole
from specserve.models.facts import ModelFacts, Tensor
from specserve.models.tokenizers import plain_name, tokenizer_family

AS_OF = "2026-11-23"
"""The day on which the catalogue was last compared with its sources."""
_SIZE = re.compile(r"(?<![a-z0-9.])(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmte](?![a-z0-9])")
"""A number of parameters or experts: `8b`, `0.6b`, `8x7b`, `a22b`, `e4b`, `128e`."""
_HEADS = {
    "eagle": (1, 2, 1, 0),
    "eagle3": (1, 3, 2, 32000),
    "dflash": (5, 5, 1, 0),
    "dspark": (5, 5, 1, 0),
}
"""Layers of a usual head, states that it merges, states that attention reads, its own tokens."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What the authors say: `length` is tokens in a step, the target's own included.

    `lengths`: of K = 1, 2 and so on.
    """

    workload: str
    k: int | None = None
    temperature: float | None = None
    length: float | None = None
    rate: float | None = None
    speedup: float | None = None
    lengths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A public page, and its date if it shows one."""

    url: str
    date: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """One way to speculate for a target. Without `model`, the layers are in its own checkpoint.

    None is what no source says. `num_speculative_tokens` is what the authors trained for or
    recommend.
    """

    target: str
    method: str
    sources: tuple[Source, ...]
    model: str | None = None
    num_speculative_tokens: int | None = None
    parallel_drafting: bool = False
    reported: tuple[Reported, ...] = ()
    note: str | None = None

    @property
    def length(self) -> float:
        """The highest mean acceptance length that is reported, up to the K above; 0 without one."""
        k, said = self.num_speculative_tokens, self.reported
        return max((max(each.length or 0, *each.lengths[:k], 0) for each in said), default=0)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Draft, ...]:
    """Every published draft that ships with specserve."""
    found = []
    for row in json.loads(Path(__file__).with_name("drafts.json").read_bytes()):
        sources = tuple(Source(**each) for each in row.pop("sources"))
        said = (
            {**each, "lengths": tuple(each.get("lengths", ()))} for each in row.pop("reported", ())
        )
        reported = tuple(Reported(**each) for each in said)
        found.append(Draft(**row, sources=sources, reported=reported))
    return tuple(found)


def drafts_for(target: str) -> Sequence[Draft]:
    """The drafts for a target, or for the model that it is a quantized copy of.

    Layers of the target come first, then the drafts with the longest reported acceptance length.
    """
    name = plain_name(target)
    found = [draft for draft in catalogue() if plain_name(draft.target) == name]
    return sorted(
        found, key=lambda draft: (draft.model is not None, -draft.length, draft.model or "")
    )


def heads_named(model: str) -> tuple[Draft, ...]:
    """The rows of the catalogue for a head with this id: what it was published for."""
    rows = (draft for draft in catalogue() if draft.method != "draft_model")
    return tuple(draft for draft in rows if (draft.model or "").lower() == model.lower() != "")


def assumed_head(model: str, target: ModelFacts) -> ModelFacts | None:
    """A head of the catalogue whose files are not here, with the sizes that such heads have.

    Its layers are as wide as the target's; for a mixture, as the heads that SpecForge trains. None
    for what is no head of the catalogue. Raises FactError.
    """
    methods = [draft.method for draft in heads_named(model) if draft.method in _HEADS]
    if not methods:
        return None
    layers, merged, read, tokens = _HEADS[methods[0]]
    text = text_config(target.config)
    hidden, heads = (integer(text, key) for key in ("hidden_size", "num_attention_heads"))
    kept = integer(text, "num_key_value_heads", default=heads)
    width = integer(text, "head_dim", default=hidden // heads)
    inner = (6 if layers == 1 else 3) * hidden
    inner = inner if whole(text, *EXPERTS) else integer(text, "intermediate_size")
    size = hidden * ((heads + 2 * kept) * width * read + heads * width + 3 * inner)
    tensors = {f"layers.{at}.weight": Tensor("BF16", (size,)) for at in range(layers)}
    tensors["fc.weight"] = Tensor("BF16", (hidden, merged * hidden))
    if tokens:
        tensors["lm_head.weight"] = Tensor("BF16", (tokens, hidden))
    config = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden}
    config |= {"num_attention_heads": heads, "num_key_value_heads": kept, "head_dim": width}
    return ModelFacts(model, "published", config, is_whole=False, tensors=tensors)


def kinship(target: str, model: str) -> Literal["same", "near", "other"] | None:
    """What a target is to a model of the catalogue, by its name; None for a stranger's name.

    `near` is another fine-tune or release of that size, `other` another family or size. Only the
    publisher of a family, or one of quantized copies, says by a name what a model is.
    """
    name, other = plain_name(target), plain_name(model)
    if name == other:
        return "same"
    tokens, its_tokens = tokenizer_family(target), tokenizer_family(model)
    if tokens is None and not drafts_for(target):
        return None
    is_related = tokens is None or its_tokens is None or tokens.name == its_tokens.name
    sizes, its_sizes = {*_SIZE.findall(name)}, {*_SIZE.findall(other)}
    return "near" if is_related and (sizes <= its_sizes or its_sizes <= sizes) else "other"
