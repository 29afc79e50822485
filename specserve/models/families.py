"""Whose token ids mean the same: tokenizer families by the names of published models."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

_FILE = Path(__file__).with_name("families.json")
_STORED = re.compile(
    r"[-_.](?:fp8|fp4|nvfp4(?:a16)?|mxfp[48](?:a16)?|int[48]|awq|gptq|autoround|quantized|dynamic|block|bnb|[48]bit|"
    r"w\d+a(?:fp)?\d+|bf16|fp16|hf|gguf|kv|marlin|sym|qat|g\d+|q\d\w*)(?=[-_.]|$)"
)
"""A word of a repository's name that says how the weights are stored."""
_NO_MODEL = re.compile(
    r"[-_.](?:eagle[-.]?\d?|dflash\d?|medusa|speculator|draft|drafter|mtp|embedding|reranker)(?![a-z])"
)
"""A word of a head, or of a model that generates nothing."""
_COPY = re.compile(
    r"(?:[-_.:](?:\d+[bmke]?|a\d+b?|v\d+|instruct|chat|it|base|thinking|preview|unsloth))*"
)
"""What may follow the model's name in that of a copy: a fine-tune may have tokens of its own."""
_LONGEST = 120
"""The Hub allows 96 characters in a name."""


class TokenizerFamily(NamedTuple):
    """The family of one model, with its `vocab_size` and the public source of both."""

    name: str
    vocab_size: int
    source: str
    date: str
    """When the source was written, or read if it shows no date."""


@lru_cache(maxsize=1)
def _table() -> tuple[dict[str, TokenizerFamily | None], dict[str, str], frozenset[str]]:
    """Families by the start of an id (None: no source decides), these starts by the model's name
    alone, and the publishers of copies; all in lower case.
    """
    data: dict[str, Any] = json.loads(_FILE.read_bytes())
    families: dict[str, TokenizerFamily | None] = dict.fromkeys(map(str.lower, data["undecided"]))
    for name, entries in data["families"].items():
        for size, source, starts in entries:
            family = TokenizerFamily(name, size, *data["sources"][source])
            families |= dict.fromkeys(map(str.lower, starts), family)
    bare = {start.partition("/")[2]: start for start in families}
    return families, bare, frozenset(map(str.lower, data["copies"]))


def plain_name(model: str) -> str:
    """The repository's name in lower case, without its owner and words for a quantization."""
    return _STORED.sub("", model.rstrip("/").rpartition("/")[2].lower()).removeprefix("meta-")


def tokenizer_family(model: str) -> TokenizerFamily | None:
    """The tokenizer family of an id of the Hub; None if no source decides it."""
    model = model.lower()
    if len(model) > _LONGEST or _NO_MODEL.search(model):
        return None
    families, bare, copies = _table()
    start, (owner, _, name) = _start(model, families), model.partition("/")
    if start is None and owner in copies:
        name = _STORED.sub("", name)
        known = _start(name, bare)
        start = bare[known] if known and _COPY.fullmatch(name, len(known)) else None
    return families[start] if start else None


def _start(model: str, known: dict[str, Any]) -> str | None:
    """The longest known start of a name: all of it, or what stands before one of `-_:`."""
    ends = (end for end in range(len(model), 0, -1) if model[end : end + 1] in ("", "-", "_", ":"))
    return next((model[:end] for end in ends if model[:end] in known), None)
