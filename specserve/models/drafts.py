"""Published drafts: heads, draft models, layers of the target; each with the page that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from specserve.models.tokenizers import plain_name, tokenizer_family

AS_OF = "2026-11-23"
"""The day on which the catalogue was last compared with its sources."""
_SIZE = re.compile(r"(?<![a-z0-9.])(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmte](?![a-z0-9])")
"""A number of parameters or experts: `8b`, `0.6b`, `8x7b`, `a22b`, `e4b`, `128e`."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What the authors say: `length` is tokens in a step, the target's own included."""

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
        """The highest mean acceptance length that is reported; 0 without one."""
        return max((each.length or 0 for each in self.reported), default=0)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Draft, ...]:
    """Every published draft that ships with specserve."""
    found = []
    for row in json.loads(Path(__file__).with_name("drafts.json").read_bytes()):
        sources = tuple(Source(**each) for each in row.pop("sources"))
        reported = tuple(Reported(**each) for each in row.pop("reported", ()))
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
