"""tokenizer.json, in full: vocabulary, added tokens, and how text becomes tokens. Does not encode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from specserve.facts.tokenizers.additions import token_text
from specserve.facts.tokenizers.files import Unreadable, parsed
from specserve.facts.tokenizers.vocabulary import Vocabulary, checked, listed, with_added

PIPELINE = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_END = re.compile(rb"\]\s*\}\s*\}\s*\Z")
_ADDED = re.compile(r'"added_tokens"\s*:\s*')
_MODEL = re.compile(r'"model"\s*:\s*\{')


def read(data: bytes, *, additions: Iterable[str] = (), source: str = "tokenizer.json") -> Vocabulary:
    """The vocabulary of a tokenizer.json. Raises Unreadable."""
    document, merges = _document(data, source=source)
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise Unreadable(f"`{source}` has no `model`")
    model = document["model"]
    vocab = model.get("vocab")
    tokens = listed(vocab, source=source) if isinstance(vocab, list) else checked(vocab, source=source)
    added = document.get("added_tokens")
    texts = _added_texts(added if added is not None else [], source=source)
    pipeline = {name: document.get(name) for name in PIPELINE}
    pipeline["model"] = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    return with_added(tokens, [*texts, *additions], source=source, pipeline=pipeline, merges=merges)


def added_texts(data: bytes, *, source: str = "tokenizer.json") -> frozenset[str]:
    """The added tokens alone, where the file names them before its model, as all writers do; else none."""
    head = data[: 2**22].decode("utf-8", errors="replace")
    start, model = _ADDED.search(head), _MODEL.search(head)
    if not start or (model and model.start() < start.start()):
        return frozenset()
    try:
        value, _ = json.JSONDecoder().raw_decode(head, start.end())
        return frozenset(_added_texts(value, source=source))
    except (ValueError, RecursionError, Unreadable):
        return frozenset()


def _document(data: bytes, *, source: str) -> tuple[Any, bytes | None]:
    """The document without its merges, and the text of these: half the time, where they stand at the end."""
    starts = [match.end() for match in _MERGES.finditer(data)]
    end = _END.search(data, max(len(data) - 200, 0))
    if len(starts) == 1 and end and starts[0] <= end.start():
        try:
            document = parsed(data[: starts[0]] + data[end.start() :], name=source)
        except Unreadable:
            pass
        else:
            return document, data[starts[0] - 1 : end.start() + 1]
    document = parsed(data, name=source)
    model = document.get("model") if isinstance(document, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    return document, None if merges is None else json.dumps(merges).encode()


def _added_texts(added: Any, *, source: str) -> list[str]:
    if not isinstance(added, list):
        raise Unreadable(f"`added_tokens` in `{source}` is not a list")
    texts = [token_text(item) for item in added]
    return [text for text in texts if text]
