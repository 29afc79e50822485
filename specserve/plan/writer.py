"""YAML written: trees of values with comments, and changed values in the text of a profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from textwrap import wrap
from typing import Any

import yaml

from specserve.diagnostics import Span
from specserve.profile.fingerprint import jsonable
from specserve.profile.schema import Profile
from specserve.profile.tree import Node, meaning

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


_SECTION = "speculation"


@dataclass(frozen=True, slots=True)
class _Edit:
    """Text to stand in the place of a part of the file; offsets in characters."""

    begin: int
    end: int
    text: str


def with_speculation(text: str, profile: Profile, wanted: Mapping[str, Any] | None, *, remark: str) -> str:
    """The file's text with this block (None: without speculation), and the remark as a comment above it.

    `profile`: as it was read from this very text. Earlier remarks that begin with the same words are replaced.
    """
    edits: list[_Edit] = []
    lines = text.splitlines(keepends=True)
    own = profile.key_spans.get(_SECTION) or profile.spans.get(_SECTION)
    if own is None or own.file != profile.file:
        block = _lines(wanted, remark=remark, indent="")
        return text + ("" if text.endswith("\n") or not text else "\n") + block
    if wanted is None or _is_other(profile, wanted):
        return _replaced(lines, own, profile, wanted, remark=remark)
    before = profile.speculation.keys if profile.speculation else {}
    gone = [name for name in before if name not in wanted]
    for name, value in wanted.items():
        if name not in before or jsonable(before[name]) != jsonable(value):
            edits.append(_set(text, lines, profile, name, value))
    edits += [_removed(text, lines, profile, name) for name in gone if f"{_SECTION}.{name}" in profile.spans]
    return _remarked(_applied(text, edits), own, remark=remark)


def _is_other(profile: Profile, wanted: Mapping[str, Any]) -> bool:
    now = profile.speculation
    return now is None or now.method != wanted.get("method")


def _set(text: str, lines: Sequence[str], profile: Profile, name: str, value: Any) -> _Edit:
    """A value replaced where it stands, or written behind the last one of the block."""
    path = f"{_SECTION}.{name}"
    shown = flow(jsonable(value))
    span = profile.spans.get(path)
    if span is not None and span.file == profile.file:
        return _Edit(_offset(lines, span.line, span.column), _end(lines, _whole(text, profile, path)), shown)
    last = _last_key(profile)
    after = _whole(text, profile, f"{_SECTION}.{last}")
    if _is_flow(text, lines, profile):
        place = _end(lines, after)
        return _Edit(place, place, f", {name}: {shown}")
    key = profile.key_spans.get(f"{_SECTION}.{last}", after)
    place = _offset(lines, after.end_line, 1) + len(lines[(after.end_line) - 1])
    lead = "" if lines[(after.end_line) - 1].endswith("\n") else "\n"
    return _Edit(place, place, f"{lead}{' ' * (key.column - 1)}{name}: {shown}\n")


def _removed(text: str, lines: Sequence[str], profile: Profile, name: str) -> _Edit:
    """A key that is wanted no more: its lines are gone, or its part of a line."""
    path = f"{_SECTION}.{name}"
    key, span = profile.key_spans[path], _whole(text, profile, path)
    if not _is_flow(text, lines, profile):
        end = span.end_line
        return _Edit(_offset(lines, key.line, 1), _offset(lines, end, 1) + len(lines[end - 1]), "")
    begin, end = _offset(lines, key.line, key.column), _end(lines, span)
    rest = text[end:]
    if rest.lstrip().startswith(","):
        end += len(rest) - len(rest.lstrip()) + 1
        end += len(text[end:]) - len(text[end:].lstrip(" "))
    else:
        begin = len(text[:begin].rstrip().rstrip(","))
    return _Edit(begin, end, "")


def _replaced(
    lines: Sequence[str], own: Span, profile: Profile, wanted: Mapping[str, Any] | None, *, remark: str
) -> str:
    """Another method, or none: the old block stays as a comment."""
    first = own.line
    last = _whole("".join(lines), profile, _SECTION).end_line
    old = [f"# {line}" if line.strip() else line for line in lines[first - 1 : last]]
    if old and not old[-1].endswith("\n"):
        old[-1] += "\n"
    return (
        "".join([*lines[: first - 1], *old])
        + _lines(wanted, remark=remark, indent="")
        + "".join(lines[last:])
    )


def _lines(wanted: Mapping[str, Any] | None, *, remark: str, indent: str) -> str:
    told = [f"{line}\n" for line in comment(remark, indent=indent, hanging=True)]
    if wanted is None:
        return "".join([*told, f"{_SECTION}: null\n"])
    keys = [f"  {name}: {flow(jsonable(value))}\n" for name, value in wanted.items()]
    return "".join([*told, f"{_SECTION}:\n", *keys])


def _remarked(text: str, own: Span, *, remark: str) -> str:
    """The remark above the section, in the place of an earlier one."""
    lines = text.splitlines(keepends=True)
    first = own.line - 1
    mark = remark.split(":", 1)[0]
    begin = first
    while begin > 0 and lines[begin - 1].startswith("#"):
        begin -= 1
    kept: list[str] = []
    index = begin
    while index < first:
        count = _remark_lines(lines[index:first], mark)
        kept += lines[index : index + 1] if not count else []
        index += count or 1
    told = [f"{line}\n" for line in comment(remark, indent="", hanging=True)]
    return "".join([*lines[:begin], *kept, *told, *lines[first:]])


def _remark_lines(lines: Sequence[str], mark: str) -> int:
    """How many lines an earlier remark takes that begins here: its first, and those that are indented below it."""
    if not lines or not lines[0].startswith(f"# {mark}"):
        return 0
    return 1 + len(list(takewhile(lambda line: line.startswith("#   "), lines[1:])))


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    """Edits from the last place to the first; those at one place in their order."""
    for edit in sorted(edits, key=lambda each: each.begin, reverse=True):
        text = text[: edit.begin] + edit.text + text[edit.end :]
    return text


def _whole(text: str, profile: Profile, path: str) -> Span:
    """A value with its true end: that of a block's span lies behind the comments that follow it."""
    span = profile.spans[path]
    lines = text.splitlines(keepends=True)
    below = [
        _whole(text, profile, each)
        for each, inner in profile.spans.items()
        if each.startswith((f"{path}.", f"{path}["))
        and inner.file == profile.file
        and (each[len(path) :].count("."), each[len(path) :].count("[")) in ((1, 0), (0, 1))
    ]
    if not below or text[_offset(lines, span.line, span.column)] in "[{":
        return span
    last = max(below, key=lambda each: (each.end_line, each.end_column))
    return replace(span, end_line=last.end_line, end_column=last.end_column)


def _last_key(profile: Profile) -> str:
    """The key of the block that stands last in this file."""
    found = [
        (span.end_line, span.end_column, path.removeprefix(f"{_SECTION}."))
        for path, span in profile.spans.items()
        if path.startswith(f"{_SECTION}.") and path.count(".") == 1 and span.file == profile.file
    ]
    return max(found)[2]


def _is_flow(text: str, lines: Sequence[str], profile: Profile) -> bool:
    """Whether the block is written in braces."""
    span = profile.spans[_SECTION]
    return text[_offset(lines, span.line, span.column) :].startswith("{")


def _offset(lines: Sequence[str], line: int, column: int) -> int:
    return sum(len(each) for each in lines[: line - 1]) + column - 1


def _end(lines: Sequence[str], span: Span) -> int:
    return _offset(lines, span.end_line, span.end_column)
