"""The tokenizer files of a model: which one vLLM would load, and its bytes. Does not know what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError
from specserve.facts.bounded import json_problem, read_regular
from specserve.facts.model import ModelFacts, ModelFile

Kind = Literal["tokenizer.json", "vocab.json", "sentencepiece", "tekken", "vocab.txt"]

LARGEST_BYTES = 64 * 2**20
"""Above this a file is not read. The largest public tokenizer.json (262,144 entries) has 33 MB."""
LARGEST_SMALL_BYTES = 8 * 2**20
"""Bound for the files beside it: tokenizer_config.json and the like."""
MOST_VALUES = 8_000_000
"""Commas and brackets in a JSON file that is parsed: a bound on the memory that its values take."""

_NAMES: tuple[tuple[str, Kind], ...] = (
    ("tokenizer.json", "tokenizer.json"),
    ("vocab.json", "vocab.json"),
    ("tokenizer.model", "sentencepiece"),
    ("tekken.json", "tekken"),
    ("spiece.model", "sentencepiece"),
    ("sentencepiece.bpe.model", "sentencepiece"),
    ("vocab.txt", "vocab.txt"),
)


class Unreadable(Exception):
    """A tokenizer file cannot be used; the text says which, and why."""


def vocabulary_file(facts: ModelFacts) -> tuple[str, Kind] | None:
    """The file that holds the vocabulary, in the order of transformers and of vLLM's Mistral mode.

    None: the model ships none that is known. Source: vllm/tokenizers/registry.py and transformers'
    tokenization_utils_tokenizers.py, vLLM 0.32.
    """
    if "tekken.json" in facts.files and any(name.startswith("consolidated") for name in facts.files):
        return "tekken.json", "tekken"
    return next(((name, kind) for name, kind in _NAMES if name in facts.files), None)


def same_bytes(left: ModelFile, right: ModelFile) -> bool:
    """Whether two files are known to hold the same bytes. Raises Unreadable."""
    if left.sha256 is not None and right.sha256 is not None:
        return left.sha256 == right.sha256
    if left.path is None or right.path is None or left.size_bytes != right.size_bytes:
        return False
    return content(left.path) == content(right.path)


def content(path: Path, *, most_bytes: int = LARGEST_BYTES) -> bytes:
    """The bytes of a regular file. Raises Unreadable where it is larger than that, or cannot be read."""
    try:
        return read_regular(path, limit_bytes=most_bytes)
    except FactError as error:
        raise Unreadable(error.message) from None
    except ValueError:  # a NUL in the name
        raise Unreadable(f"{path.name!r} is not a name of a file") from None


def needed(facts: ModelFacts, name: str) -> Path:
    """Where a file of a model lies. Raises Unreadable where it is not on this machine."""
    file = facts.files.get(name)
    if file is None or file.path is None:
        raise Unreadable(f"`{name}` of `{facts.model}` is not on this machine")
    return file.path


def parsed(data: bytes, *, name: str) -> Any:
    """A JSON document, bounded in the memory it can take. Raises Unreadable."""
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > MOST_VALUES:
        raise Unreadable(f"`{name}` holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"`{name}` is not valid JSON: {json_problem(error, data)}") from None


def small_json(facts: ModelFacts, name: str) -> dict[str, Any]:
    """A small JSON object beside the vocabulary; empty where there is none. Raises Unreadable."""
    file = facts.files.get(name)
    if file is None:
        return {}
    value = parsed(content(needed(facts, name), most_bytes=LARGEST_SMALL_BYTES), name=name)
    if not isinstance(value, dict):
        raise Unreadable(f"`{name}` of `{facts.model}` is not a JSON object")
    return value
