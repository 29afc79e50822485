"""The chat template: which special tokens of the tokenizer it writes. Does not render it."""

from __future__ import annotations

import re
from typing import Any

from specserve.facts.model import ModelFacts
from specserve.facts.tokenizers.additions import special_tokens
from specserve.facts.tokenizers.files import LARGEST_SMALL_BYTES, content, needed, small_json
from specserve.facts.tokenizers.vocabulary import Vocabulary

FILE = "chat_template.jinja"
_NAME = re.compile(r"\b(?:bos|eos|unk|pad|sep|cls)_token\b")


def template(facts: ModelFacts) -> str | None:
    """All chat templates of a model as one text; a file of its own wins. Raises Unreadable."""
    if FILE in facts.files:
        data = content(needed(facts, FILE), most_bytes=LARGEST_SMALL_BYTES)
        return data.decode("utf-8", errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        text = _joined(small_json(facts, name).get("chat_template"))
        if text:
            return text
    return None


def template_ids(facts: ModelFacts, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of the special tokens that the template writes, and of the end of the text. Raises Unreadable."""
    text = template(facts) or ""
    named = special_tokens(facts)
    used = set(_NAME.findall(text)) | {"eos_token"}
    if not text:
        used.add("bos_token")
    texts = {named[name] for name in used if name in named}
    return tuple(
        sorted(
            index
            for index in vocabulary.added
            if (token := vocabulary.tokens[index]) in texts or (len(token) > 2 and token in text)
        )
    )


def _joined(value: Any) -> str | None:
    """A template, or a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {
            str(place): item.get("template") for place, item in enumerate(value) if isinstance(item, dict)
        }
    if isinstance(value, dict):
        return "\n".join(text for text in value.values() if isinstance(text, str)) or None
    return None
