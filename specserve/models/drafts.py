"""Published drafts: heads, draft models, layers of the target; each with the page that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib import resources
from typing import Literal

from specserve.models.families import tokenizer_family

_BUILD = re.compile(
    r"[-_.](?:fp8|fp4|nvfp4(?:a16)?|mxfp[48](?:a16)?|int[48]|awq|gptq|autoround|quantized|dynamic|block|bnb|[48]bit|"
    r"w\d+a(?:fp)?\d+|bf16|fp16|hf|gguf|kv|marlin|sym|qat|g\d+|q\d\w*)(?=[-_.]|$)"
)
"""A word of a repository's name that says how the weights are stored."""
_NEAR = 0.94
_SIZE = re.compile(r"(?<![a-z0-9.])(?:\d+x)?[ae]?\d+(?:\.\d+)?[bmte](?![a-z0-9])")
"""A number of parameters or experts: `8b`, `0.6b`, `8x7b`, `a22b`, `e4b`, `128e`."""
_SIZE_WORDS = frozenset({
    "air", "flash", "large", "linear", "lite", "max", "medium", "mini", "nano", "next", "pro",
    "small", "super", "tiny", "ultra",
})  # fmt: skip
"""What says the size in a name without such a number."""


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
    recommend, `vllm` the first version that they name, `parameters` a count, `context` tokens.
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
    rows = json.loads(
        resources.files(__package__).joinpath("drafts.json").read_text(encoding="utf-8")
    )
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
    return sorted(
        found, key=lambda draft: (draft.model is not None, -draft.length, draft.model or "")
    )


def plain_name(model: str) -> str:
    """The repository's name in lower case, without its owner and words for a quantization."""
    return _BUILD.sub("", model.rstrip("/").rpartition("/")[2].lower()).removeprefix("meta-")


def heads_named(model: str) -> tuple[Draft, ...]:
    """The rows of the catalogue for a head with this id: what it was published for."""
    rows = (draft for draft in catalogue() if draft.method != "draft_model")
    return tuple(draft for draft in rows if (draft.model or "").lower() == model.lower() != "")


def head_meant(model: str) -> str | None:
    """The head of the catalogue that a misspelt id means: same publisher, same numbers."""
    from difflib import SequenceMatcher

    owner, numbers = model.lower().partition("/")[0], re.findall("[0-9]+", model)
    near = {
        SequenceMatcher(None, name.lower(), model.lower()).ratio(): name
        for name in (draft.model for draft in catalogue() if draft.model)
        if name.lower().startswith(f"{owner}/") and re.findall("[0-9]+", name) == numbers
    }
    return near[max(near)] if near and _NEAR <= max(near) < 1 else None


Kinship = Literal["same", "release", "fine-tune", "other"]


def kinship(target: str, model: str) -> Kinship | None:
    """What a target is to a model of the catalogue, by its name; None if that decides nothing.

    `other` is of another family, generation or size, `release` of another number within the
    generation (3 and 3.1), `fine-tune` whatever else has another name. Only the publisher of a
    family, or one of quantized copies, says by a name what a model is.
    """
    name, other = plain_name(target), plain_name(model)
    if name == other:
        return "same"
    tokens, its_tokens = tokenizer_family(target), tokenizer_family(model)
    if tokens is None and target.lower().rpartition("/")[0] not in _publishers().get(
        _first_word(name), ()
    ):
        return None
    own, its = _generations(name), _generations(other)
    numbers = [(own[family], its[family]) for family in own.keys() & its.keys()]
    pairs = [(a, b) for a, b in numbers if a and b and a[0] == b[0]]
    sizes, theirs = {*_SIZE.findall(name)}, {*_SIZE.findall(other)}
    words = {*re.split(r"[-_.]", name)} ^ {*re.split(r"[-_.]", other)}
    is_resized = (
        not (sizes <= theirs or theirs <= sizes) if sizes and theirs else bool(words & _SIZE_WORDS)
    )
    is_foreign = tokens.name != its_tokens.name if tokens and its_tokens else not numbers
    if is_foreign or is_resized or any(a[1] != b[1] for a, b in pairs):
        return "other"
    return "release" if any(a != b for a, b in pairs) else "fine-tune"


@lru_cache(maxsize=1)
def _publishers() -> dict[str, set[str]]:
    """The publishers of each family of targets, by the first word of their names."""
    found: dict[str, set[str]] = {}
    for draft in catalogue():
        word, owner = _first_word(plain_name(draft.target)), draft.target.lower().rpartition("/")[0]
        found.setdefault(word, set()).add(owner)
    return found


def _first_word(name: str) -> str:
    return re.split(r"[^a-z]", name, maxsplit=1)[0]


def _generations(name: str) -> dict[str, tuple[str, str, str] | None]:
    """The families in a name, with letter, generation, release: `k`, `2`, `5` of `kimi-k2.5`."""
    families = "|".join(map(re.escape, _publishers()))
    number = r"(?:[-_]?([a-z]?)(\d+)(?:[._](\d+))?(?![\dbxmte]))?"
    found = re.finditer(rf"(?<![a-z])({families}){number}", name)
    return {match[1]: (match[2], match[3], match[4] or "") if match[3] else None for match in found}
