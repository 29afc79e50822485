"""A tree of values to YAML, with comments above the keys they are about. Knows no schema but the order of sections."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from textwrap import wrap

from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

ORDER = ("vllm", "target", "speculation", "engine", "frontend", "server", "hardware", "env")
_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./@+~-]*(:[A-Za-z0-9_./@+~-]+)*(?: [A-Za-z0-9_./@+~-]+)*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
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
    key = name if _KEY.fullmatch(name) and meaning(name) == name else _quoted(name)
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
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    return value if _PLAIN.fullmatch(value) and type(meaning(value)) is str else _quoted(value)


def _float(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return repr(value)


def _quoted(text: str) -> str:
    """The text in double quotes, what cannot be seen escaped."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(character)
    if 0xD800 <= number < 0xE000:  # half a character, which no file can hold
        return "\ufffd"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
