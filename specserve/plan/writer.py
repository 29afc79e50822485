"""A tree of values to YAML, with comments above the keys they are about."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from textwrap import wrap

from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

ORDER = ("vllm", "target", "speculation", "engine", "frontend", "server", "hardware", "env")
_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(:[A-Za-z0-9_./@+~-]+)*(?: [A-Za-z0-9_./@+~-]+)*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

Comments = Mapping[str, Iterable[str]]


def yaml_text(tree: Node, *, head: Iterable[str], comments: Comments) -> str:
    """The profile's text: the head's comments, then the sections in their order."""
    lines = [line for text in head for line in comment(text, indent="")]
    sections = tree.mapping or {}
    for name in sorted(sections, key=ORDER.index):
        node = sections[name]
        lines += _entry(name, node, name, comments, indent="")
    return "\n".join(lines) + "\n"


def comment(text: str, *, indent: str, hanging: bool = False) -> list[str]:
    """A text as lines of a comment; `hanging`: those after the first are indented, as those of a list are."""
    width = _WIDTH - len(indent) - 2
    clean = "".join(character if character.isprintable() else " " for character in text)
    lead = "  " if hanging or text.startswith("- ") else ""
    lines = wrap(clean, width, subsequent_indent=lead, break_long_words=True, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]


def _entry(name: str, node: Node, path: str, comments: Comments, *, indent: str) -> list[str]:
    lines = [line for text in comments.get(path, ()) for line in comment(text, indent=indent)]
    key = _flow_key(name)
    short = f"{indent}{key}: {flow(node)}"
    if node.mapping and (indent == "" or len(short) > _WIDTH):
        lines.append(f"{indent}{key}:")
        for child, value in node.mapping.items():
            lines += _entry(child, value, f"{path}.{child}", comments, indent=indent + "  ")
        return lines
    return [*lines, short]


def flow(node: Node) -> str:
    """A value on one line."""
    value = node.value
    if isinstance(value, dict):
        inner = ", ".join(f"{_flow_key(key)}: {flow(child)}" for key, child in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(flow(child) for child in value)}]"
    return scalar(value)


def _flow_key(key: str) -> str:
    return key if _KEY.fullmatch(key) and meaning(key) == key else _quoted(key)


def scalar(value: str | int | float | bool | None) -> str:
    """A scalar that a profile reads back as the same value."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and type(meaning(value)) is str else _quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """The text in double quotes, what cannot be seen escaped as YAML has it."""
    shown = json.dumps(text, ensure_ascii=False)
    return "".join(character if character.isprintable() else _escaped(ord(character)) for character in shown)


def _escaped(number: int) -> str:
    if 0xD800 <= number < 0xE000:  # half a character, which no file can hold
        return "\ufffd"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
