"""A tree of values to YAML, with comments above the keys they are about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import yaml

from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

ORDER = ("vllm", "target", "speculation", "engine", "frontend", "server", "hardware", "env")
_WIDTH = 100

Comments = Mapping[str, Iterable[str]]


class _Dumper(yaml.SafeDumper):
    """Writes nodes as their values, and puts quotes around what a profile would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always: a profile has no anchors."""
        return True

    def check_simple_key(self) -> bool:
        """Always, also for a long key: a profile has no `? key`."""
        return True

    def text_node(self, text: str) -> yaml.ScalarNode:
        """A text, which may hold half a character that no file can hold."""
        text = text.encode(errors="replace").decode()
        quoted = not text.isprintable() or type(meaning(text)) is not str
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


_Dumper.add_representer(str, _Dumper.text_node)
_Dumper.add_representer(Node, lambda dumper, node: dumper.represent_data(node.value))


def yaml_text(tree: Node, *, head: Iterable[str], comments: Comments) -> str:
    """The profile's text: the head's comments, then the sections in their order."""
    lines = [line for text in head for line in comment(text, indent="")]
    sections = tree.mapping or {}
    for name in sorted(sections, key=ORDER.index):
        lines += _entry(name, sections[name], name, comments, indent="")
    return "\n".join(lines) + "\n"


def comment(text: str, *, indent: str, hanging: bool = False) -> list[str]:
    """A text as lines of a comment; `hanging`: those after the first are indented, as those of a list are."""
    width = _WIDTH - len(indent) - 2
    clean = "".join(character if character.isprintable() else " " for character in text)
    lead = "  " if hanging or text.startswith("- ") else ""
    lines = wrap(clean, width, subsequent_indent=lead, break_long_words=True, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]


def flow(value: Any) -> str:
    """A value, or a tree of nodes, on one line."""
    return _on_one_line([value])


def _on_one_line(container: Any) -> str:
    """What a list or mapping holds, without its brackets."""
    text = yaml.dump(
        container,
        Dumper=_Dumper,
        default_flow_style=True,
        width=math.inf,
        allow_unicode=True,
        sort_keys=False,
    )
    return str(text).strip()[1:-1]


def _entry(name: str, node: Node, path: str, comments: Comments, *, indent: str) -> list[str]:
    lines = [line for text in comments.get(path, ()) for line in comment(text, indent=indent)]
    short = f"{indent}{_on_one_line({name: node})}"
    if not node.mapping or (indent and len(short) <= _WIDTH):
        return [*lines, short]
    lines.append(f"{indent}{flow(name)}:")
    for child, value in node.mapping.items():
        lines += _entry(child, value, f"{path}.{child}", comments, indent=indent + "  ")
    return lines
