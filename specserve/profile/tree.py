"""YAML text to a tree of values that know their place, or to what is wrong with it (SD0xx)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from specserve.diagnostics import Code, Finding, Related, Severity, Span
from specserve.errors import CONTROL, quoted
from specserve.profile.secrets import hushed
from specserve.profile.source import MAX_BYTES

MAX_VALUES = 20_000
MAX_DEPTH = 50
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Scalar = None | bool | int | float | str


@dataclass(slots=True)
class Node:
    """One value with its place and that of its key: a scalar, a list or a mapping of nodes."""

    value: Scalar | list[Node] | dict[str, Node]
    span: Span
    key: Span | None = None
    raw: str | None = None
    """The text of a plain scalar, before YAML turned it into something else."""
    is_relative: bool = False
    """A path that was written from a folder, and made absolute."""

    @property
    def mapping(self) -> dict[str, Node] | None:
        """The value if it is a mapping."""
        return self.value if isinstance(self.value, dict) else None

    def nodes(self, path: str = "", found: dict[str, Node] | None = None) -> dict[str, Node]:
        """All values below by their dotted paths: `target.model`, `expect[0].workload`."""
        found = {} if found is None else found
        if path:
            found[path] = self
        if isinstance(self.value, dict):
            for key, child in self.value.items():
                child.nodes(f"{path}.{key}" if path else key, found)
        elif isinstance(self.value, list):
            for index, child in enumerate(self.value):
                child.nodes(f"{path}[{index}]", found)
        return found


def merged(parent: Node, child: Node, *, path: tuple[str, ...] = ()) -> Node:
    """The child over its parent: mappings merge, lists and scalars replace, null takes away.

    A block of speculation merges only where the child keeps the method; with another one it is
    replaced whole. `path`: where the two stand.
    """
    above, below = parent.mapping, child.mapping
    if above is None or below is None:
        return child
    is_block = path == ("speculation",) or (len(path) == 2 and path[0] == "alternatives")
    method = above["method"].value if "method" in above else None
    if is_block and "method" in below and below["method"].value != method:
        return child
    values = dict(above)
    for key, node in below.items():
        was = values.get(key)
        if was and was.value is not None and node.value is None:
            del values[key]
        else:
            values[key] = merged(was, node, path=(*path, key)) if was else node
    return replace(child, value=values)


_WORDS: dict[str, None | bool | float] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", "+.inf", "-.inf", ".Inf", ".nan", ".NaN"), float("nan")),
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*|(?=[eE]))|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 30  # no number of a profile is longer; digits of a hash may be


def meaning(text: str) -> Scalar:
    """`1e-3` is a number, `yes` is true; dates and `010`, of which readers differ, are texts."""
    if text in _WORDS:
        return _WORDS[text]
    is_number = text[0] in "+-.0123456789" and len(text) <= _LONGEST_NUMBER
    digits = text.replace("_", "") if is_number else ""
    if digits and _INT.fullmatch(text):
        return int(digits, 0)
    return float(digits) if digits and _FLOAT.fullmatch(text) else text


NAMES = {
    "SD002": "unreadable-file",
    "SD004": "duplicate-key",
    "SD005": "unknown-key",
    "SD006": "wrong-value",
    "SD007": "missing-key",
    "SD009": "bad-extends",
}
CODES: tuple[Code, ...] = tuple(Code(*item, Severity.ERROR) for item in NAMES.items())


class Stop(Exception):
    """The file is not worth reading on: its last finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(code: str, message: str, span: Span, **more: Any) -> Finding:
    """An error of the file itself, with `help`, `related` places, or as a `policy`."""
    return Finding(code, NAMES[code], Severity.ERROR, hushed(message), span, **more)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once, in file order."""
    return sorted(dict.fromkeys(findings), key=lambda item: (item.sort_key, item.message))


def parse(data: bytes, *, file: str, is_value: bool = False) -> tuple[Node | None, list[Finding]]:
    """The tree of a YAML document and every problem of its form; None if there is no tree to use.

    `is_value`: the document is one value of a profile, of any kind.
    """
    builder = Builder(file)
    try:
        if len(data) > MAX_BYTES:
            text = f"the file is larger than {MAX_BYTES:,} bytes, the limit for a profile"
            raise Stop(problem("SD002", text, Span(file)))
        trees = list(builder.documents(data.decode("utf-8-sig"), most=1))
        if not trees or (trees[0].value is None and trees[0].raw == ""):
            raise Stop(problem("SD002", "the file is empty", Span(file)))
        if trees[0].mapping is None and not is_value:
            text = f"a profile must be a mapping of keys; found {shown(trees[0])}"
            raise Stop(problem("SD002", text, trees[0].span))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = f"the file has the byte 0x{data[error.start]:02x}, which is not UTF-8"
        return None, [problem("SD002", text, Span(file, line))]
    except Stop as stop:
        return None, ordered([*builder.findings, stop.finding])
    return trees[0], ordered(builder.findings)


def shown(node: Node) -> str:
    """A value as it may stand in a message."""
    if node.value is None:
        return "nothing"
    if isinstance(node.value, (dict, list)):
        return "a mapping" if isinstance(node.value, dict) else "a list"
    return f"the text {quoted(str(node.value))}" if node.raw is None else quoted(node.raw)


class Builder:
    """Builds the trees of one file; counts values, so that aliases cannot blow it up."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.count = 0
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        """Each value with a name, the number of values in it, and how deep it is."""
        self.deepest = 0
        self.next: Callable[[], Any] = yaml.StreamEndEvent

    def documents(self, text: str, *, most: int = MAX_VALUES) -> Iterator[Node]:
        """The value of each document. Raises Stop for what is no YAML, or no value of ours."""
        try:
            self.next = _LOADER(text).get_event
            while not isinstance(event := self.next(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    if not most:
                        raise self.stop("the file holds several YAML documents", event)
                    most, self.anchors = most - 1, {}
                    yield self.value(self.next(), 0)
        except yaml.YAMLError as error:
            raise Stop(_syntax_problem(error, text, file=self.file)) from error

    def value(self, event: Any, depth: int, key: Span | None = None) -> Node:
        """The value that begins with this event, and all below; `key`: where its key is."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.stop("the alias has no complete value before it", event)
            known, size, height = self.anchors[event.anchor]
            self.grow(event, size, depth + height)  # it may stand in what another one brings in
            return Node(known.value, known.span, key, known.raw)
        before, outside = self.count, self.deepest
        self.deepest = 0
        self.grow(event, 1, depth)
        value: Any = []
        end, raw = event.end_mark, None
        if event.tag not in (None, "!"):
            tag = quoted(event.tag.removeprefix("tag:yaml.org,2002:"))
            place = self.span(event.start_mark, end)
            self.tell(f"the YAML tag {tag} has no meaning in a profile", place)
        if isinstance(event, yaml.ScalarEvent):
            raw = None if event.style else event.value
            value = event.value if raw is None else meaning(raw)
        elif isinstance(event, yaml.MappingStartEvent):
            value, end = self.mapping(depth + 1)
        else:
            while not isinstance(inner := self.next(), yaml.SequenceEndEvent):
                value.append(self.value(inner, depth + 1))
            end = inner.end_mark
        node = Node(value, self.span(event.start_mark, end), key, raw)
        if event.anchor:
            self.anchors[event.anchor] = node, self.count - before, self.deepest - depth
        self.deepest = max(self.deepest, outside)
        return node

    def grow(self, event: Any, values: int, depth: int) -> None:
        """Counts values that reach so deep. Raises Stop if that is too much."""
        self.count += values
        self.deepest = max(self.deepest, depth)
        if self.count > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_VALUES:,} values"
            raise self.stop(f"the file has more than {limit}, the limit for a profile", event)

    def mapping(self, depth: int) -> tuple[dict[str, Node], Any]:
        """The keys of a mapping over those that `<<` brings in, and where it ends."""
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            key = self.value(event, depth)
            value = self.value(self.next(), depth, key.span)
            name = key.value if key.raw is None else key.raw
            if not isinstance(name, str) or CONTROL.search(name):
                self.tell("a key must be a text without control characters", key.span)
            elif key.raw == "<<":
                for part in value.value if isinstance(value.value, list) else [value]:
                    merged = {**(part.mapping or {}), **merged}
                    if part.mapping is None:
                        self.tell("`<<` needs a mapping", part.span)
            elif name in own:
                first = (Related(own[name].key or key.span, "first written here"),)
                self.tell(f"the key {quoted(name)} occurs twice", key.span, "SD004", related=first)
            else:
                own[name] = value
        return {**merged, **own}, event.end_mark

    def tell(self, message: str, span: Span, code: str = "SD002", **more: Any) -> None:
        """Takes a problem of the form."""
        self.findings.append(problem(code, message, span, **more))

    def stop(self, message: str, event: Any) -> Stop:
        """The end of reading at an event."""
        return Stop(problem("SD002", message, self.span(event.start_mark, event.start_mark)))

    def span(self, start: Any, end: Any) -> Span:
        """A place, at least one character wide."""
        line, column, last = start.line + 1, start.column + 1, end.column + 1
        last += last == column and end.line == start.line
        return Span(self.file, line, column, end.line + 1, last)


def _syntax_problem(error: Any, text: str, *, file: str) -> Finding:
    """YAML's own reason at its place; what is left open, where it begins."""
    reason = str(getattr(error, "problem", None) or getattr(error, "reason", ""))
    start = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or start
    if mark is None:
        return problem("SD002", f"invalid YAML: {reason}", Span(file))
    reason += f" {error.context}" if error.context else ""
    reason += f", noticed in line {mark.line + 1}" if start and start.line != mark.line else ""
    at_end = not "".join(text.splitlines()[mark.line :])[mark.column :].strip()
    if start and (at_end or "flow" in reason or "expected ':'" in reason):
        mark = start
    span = Span(file, mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)
    return problem("SD002", f"invalid YAML: {reason}", span)
