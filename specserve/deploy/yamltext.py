"""Plain values as YAML with comments, the same bytes every time. Knows no document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from specserve.deploy.deployment import in_one_line

_WIDTH = 100
_PLAIN = re.compile(r"(?=[^-])[A-Za-z_./-][A-Za-z0-9_./@+-]*|--?[A-Za-z][A-Za-z0-9_-]*")
_RESERVED = re.compile(r"y|n|yes|no|on|off|true|false|null|~|\.(?:inf|nan)|0o?[0-7]+|[-+.0-9_eE]+", re.I)
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff]")


@dataclass(frozen=True, slots=True)
class Note:
    """A value with a comment above its key or its item."""

    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Block:
    """A text that is shown line by line."""

    text: str


def yaml_text(value: Mapping[str, Any], *, head: str = "") -> str:
    """A document. `head`: a comment above it. Values are mappings, sequences, texts, numbers, booleans and None."""
    lines = [*_comment(head, ""), *_mapping(value, "")]
    return "\n".join(lines) + "\n"


def plain(value: Any) -> Any:
    """The value without its comments, as a reader of the YAML gets it."""
    match value:
        case Note():
            return plain(value.value)
        case Block():
            return value.text
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return value


def _mapping(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, given in values.items():
        value = given
        if isinstance(given, Note):
            yield from _comment(given.text, indent)
            value = given.value
        yield from _entry(f"{indent}{_scalar(key)}:", value, indent)


def _entry(lead: str, value: Any, indent: str) -> Iterator[str]:
    match value:
        case Mapping() if value:
            yield lead
            yield from _mapping(value, f"{indent}  ")
        case list() | tuple() if value:
            yield lead
            yield from _items(value, indent)
        case Block():
            yield f"{lead} |"
            yield from (f"{indent}  {line}" if line else "" for line in value.text.rstrip("\n").split("\n"))
        case _:
            yield f"{lead} {_scalar(value)}"


def _items(values: Sequence[Any], indent: str) -> Iterator[str]:
    for given in values:
        value = given
        if isinstance(given, Note):
            yield from _comment(given.text, indent)
            value = given.value
        if isinstance(value, Mapping) and value:
            inner = list(_mapping(value, f"{indent}  "))
            start = next(index for index, line in enumerate(inner) if not line.lstrip().startswith("#"))
            yield from (line[2:] for line in inner[:start])
            yield f"{indent}- {inner[start].removeprefix(indent + '  ')}"
            yield from inner[start + 1 :]
        elif isinstance(value, (list, tuple)) and value:
            yield f"{indent}-"
            yield from _items(value, f"{indent}  ")
        else:
            yield f"{indent}- {_scalar(value)}"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.split("\n") if text else ():
        parts = wrap(in_one_line(line), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
        yield from (f"{indent}# {part}".rstrip() for part in parts or [""])


def _scalar(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():  # YAML 1.1 takes `1e-05` for a text
            return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))
        case str():
            return _text(value)
        case Mapping():
            return "{}"
        case list() | tuple():
            return "[]"
    raise TypeError(f"no YAML for {type(value).__name__}")


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and not _RESERVED.fullmatch(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
