"""Whose token ids mean the same: tokenizer families by the names of published models."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

_FILE = Path(__file__).with_name("families.json")
_NO_MODEL = re.compile(
    "[-_.](?:eagle[-.]?[0-9]?|dflash[0-9]?|medusa|speculator|draft|drafter|mtp|embedding|reranker)(?![a-z])"
)
"""A word of a head, or of a model that generates nothing."""
_COPY = re.compile(
    "(?:[-_.:](?:[0-9]+[bmke]?|a[0-9]+b?|v[0-9]+|instruct|chat|it|hf|base|thinking|fp[48]|bf16|nvfp4|mxfp4|int[48]|awq|gptq"
    "|gguf|w[48]a(?:4|8|16)|g128|dynamic|static|block|quantized|kv|bnb|[48]bit|unsloth|autoround|preview))*"
)
"""What may follow the model's name in that of a copy: a fine-tune may have tokens of its own."""
_WORDS = ("instruct", "thinking", "preview", "distill", "coder")
"""What publishers put after the model's name, and people misspell."""
_NEAR = 0.85
_LONGEST = 120
"""The Hub allows 96 characters in a name."""


class TokenizerFamily(NamedTuple):
    """The family of one model, with its `vocab_size` and the public source of both."""

    name: str
    vocab_size: int
    source: str
    date: str
    """When the source was written, or read if it shows no date."""


class PublishedName(NamedTuple):
    """The name under which a model is published, for an id that is not it."""

    model: str
    kind: Literal["renamed", "misspelt", "bare"]
    """bare: the publisher is missing."""


class _Table(NamedTuple):
    families: dict[str, TokenizerFamily | None]
    """By the start of an id in lower case; None if no source decides."""
    names: dict[str, str]
    """The start of an id as its publisher writes it, by its lower-case form without publisher."""
    renamed: dict[str, str]
    misspelt: dict[str, str]
    copies: frozenset[str]


@lru_cache(maxsize=1)
def _table() -> _Table:
    data: dict[str, Any] = json.loads(_FILE.read_bytes())
    families: dict[str, TokenizerFamily | None] = {
        start.lower(): None for start in data["undecided"]
    }
    names = {wrong.lower().partition("/")[2]: right for wrong, right in data["misspelt"].items()}
    for name, entries in data["families"].items():
        for size, source, starts in entries:
            family = TokenizerFamily(name, size, *data["sources"][source])
            families |= {start.lower(): family for start in starts}
            names |= {start.lower().partition("/")[2]: start for start in starts}
    renamed, misspelt = (
        {old.lower(): new for old, new in data[key].items()} for key in ("renamed", "misspelt")
    )
    return _Table(
        families, names, renamed, misspelt, frozenset(owner.lower() for owner in data["copies"])
    )


def tokenizer_family(model: str) -> TokenizerFamily | None:
    """The tokenizer family of an id of the Hub; None if no source decides it.

    An id that `published_name` corrects counts as the model that was meant.
    """
    table, found = _table(), published_name(model)
    model = found.model if found else model
    owner, _, name = model.partition("/")
    if owner.lower() in table.copies and not _start(model, table.families):
        start = _start(name, table.names)
        is_copy = start and _COPY.fullmatch(name.lower(), len(start))
        model = table.names[start] + name[len(start) :] if start and is_copy else model
    start = None if _NO_MODEL.search(name.lower()) else _start(model, table.families)
    return table.families[start] if start else None


def published_name(model: str) -> PublishedName | None:
    """The name that an id means which is renamed, misspelt or without its publisher; else None."""
    table, (owner, _, name) = _table(), model.rpartition("/")
    if len(model) > _LONGEST:
        return None
    if start := _start(model, table.renamed):
        return PublishedName(table.renamed[start] + model[len(start) :], "renamed")
    if start := _start(model, table.misspelt):
        return PublishedName(table.misspelt[start] + model[len(start) :], "misspelt")
    if owner.lower() in table.copies:
        return None
    if start := _start(model, table.families):
        meant = model[: len(start)] + re.sub("[A-Za-z]{5,}", _spelt, model[len(start) :])
        return PublishedName(meant, "misspelt") if meant != model else None
    if start := _start(name, table.names):
        meant = table.names[start] + name[len(start) :]
        if not owner:
            return PublishedName(meant, "bare")
        from difflib import SequenceMatcher  # needed for an unknown publisher of a known name only

        is_near = (
            SequenceMatcher(None, owner.lower(), meant.lower().partition("/")[0]).ratio() >= _NEAR
        )
        return PublishedName(meant, "misspelt") if is_near else None
    own = {
        _parts(start): right
        for start, right in table.names.items()
        if owner and right.lower().startswith(f"{owner.lower()}/")
    }
    for end in _ends(name) if own else ():
        letters, numbers = _parts(name[:end])
        for parts in ((letters, numbers), (f"{letters}b", numbers)):  # `Qwen-3-32B`, `Qwen3-32`
            if parts in own:
                return PublishedName(own[parts] + name[end:], "misspelt")
    return None


def _spelt(word: re.Match[str]) -> str:
    """A word after a model's name as publishers write it: `Instruct` for `Instuct`."""
    from difflib import get_close_matches

    near = get_close_matches(word[0].lower(), _WORDS, n=1, cutoff=_NEAR)
    if not near or near[0] == word[0].lower():
        return word[0]
    return near[0].title() if word[0][0].isupper() else near[0]


def _start(model: str, known: dict[str, Any]) -> str | None:
    """The longest known start of an id, in lower case."""
    lowered = model.lower()
    return next((lowered[:end] for end in _ends(lowered) if lowered[:end] in known), None)


def _ends(name: str) -> list[int]:
    """Where the known part of a name may end: at its end, or before `-_:`; the longest first."""
    if len(name) > _LONGEST:
        return []
    return [end for end in range(len(name), 0, -1) if name[end : end + 1] in ("", "-", "_", ":")]


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """The letters and the numbers of a name: equal for `Qwen-2.5-7B` and `Qwen25-7B`."""
    return "".join(re.findall("[a-z]+", name.lower())), tuple(
        re.findall("[0-9]+", name.replace(".", ""))
    )
