"""tekken.json, Mistral's own format: special tokens first, then bytes by rank. Does not encode."""

from __future__ import annotations

import binascii
from typing import Any

from specserve.facts.tokenizers.bytelevel import written
from specserve.facts.tokenizers.files import Unreadable, parsed
from specserve.facts.tokenizers.vocabulary import LARGEST_ID, Vocabulary

DEFAULT_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]",
    "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")  # fmt: skip
"""Of files that name none. Source: mistral_common 1.13, `Tekkenizer.DEPRECATED_SPECIAL_TOKENS`."""


def read(data: bytes, *, source: str = "tekken.json") -> Vocabulary:
    """The vocabulary of a tekken.json; bytes are written as byte-level BPE writes them. Raises Unreadable."""
    document = parsed(data, name=source)
    try:
        config = document["config"]
        size = _count(config["default_vocab_size"])
        specials = _count(config["default_num_special_tokens"])
        words = document["vocab"]
        tokens = _specials(document.get("special_tokens"), count=specials)
        added = frozenset(tokens)
        for word in words[: max(size - specials, 0)]:
            raw = binascii.a2b_base64(word["token_bytes"])
            tokens[_count(word["rank"]) + specials] = written(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable(f"`{source}` is not a tekken vocabulary") from None
    return Vocabulary(source, tokens, added)


def _specials(listed: Any, *, count: int) -> dict[int, str]:
    named = (
        {_count(item["rank"]): str(item["token_str"]) for item in listed}
        if listed
        else dict(enumerate(DEFAULT_SPECIAL))
    )
    if count > 100_000:
        raise ValueError(count)
    return {rank: named.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_ID:
        raise ValueError(value)
    return value
