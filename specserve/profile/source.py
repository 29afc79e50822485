"""The bytes of profiles, and YAML text to a tree of values that know line and column."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from specserve.diagnostics import Finding, Related, Span
from specserve.errors import CONTROL, quoted
from specserve.files import read_named
from specserve.profile.problems import Stop, ordered, problem
from specserve.profile.values import Node, meaning

MAX_BYTES = 1_000_000  # far above any profile, far below what hurts
MAX_VALUES = 20_000
MAX_DEPTH = 50
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse(data: bytes, *, file: str, is_value: bool = False) -> tuple[Node | None, list[Finding]]:
    """The tree of a YAML document and every problem of its form; None if there is no tree to use.

    `is_value`: the document is one value of a profile, of any kind.
    """
    builder = Builder(file)
    try:
        trees = list(builder.documents(_decoded(data, file=file), most=1))
        if not trees or (trees[0].value is None and trees[0].raw == ""):
            raise Stop(problem("SD002", "the file is empty", Span(file)))
        if trees[0].mapping is None and not is_value:
            text = f"a profile must be a mapping of keys; found {shown(trees[0])}"
            raise Stop(problem("SD002", text, trees[0].span))
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


def _decoded(data: bytes, *, file: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES:,} bytes, the limit for a profile"
        raise Stop(problem("SD002", message, Span(file)))
    text = data.decode("utf-8-sig", errors="surrogateescape")
    if bad := _UNPRINTABLE.search(text):
        lines, code = f"{text[: bad.start()]}_".splitlines(), ord(bad[0])
        what = f"the character U+{code:04X}, which YAML does not allow"
        if 0xDC80 <= code <= 0xDCFF:
            what = f"the byte 0x{code - 0xDC00:02x}, which is not UTF-8"
        place = Span(file, len(lines), len(lines[-1]), len(lines), len(lines[-1]) + 1)
        raise Stop(problem("SD002", f"the file has {what}", place))
    return text


class Builder:
    """Builds the trees of one file; counts values, so that aliases cannot blow it up."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.findings: list[Finding] = []
        self.count = 0
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.deepest = 0
        self.events: Iterator[Any] = iter(())

    def documents(self, text: str, *, most: int = MAX_VALUES) -> Iterator[Node]:
        """The value of each document. Raises Stop for what is no YAML, or no value of ours."""
        self.events = yaml.parse(text, Loader=_LOADER)
        try:
            for event in self.events:
                if isinstance(event, yaml.DocumentStartEvent):
                    if not most:
                        raise self.stop("the file holds several YAML documents", event)
                    most, self.anchors = most - 1, {}
                    yield self.value(next(self.events), 0)
        except yaml.YAMLError as error:
            raise Stop(_syntax_problem(error, text, file=self.file)) from error

    def value(self, event: Any, depth: int) -> Node:
        """The value that begins with this event, and all below."""
        is_alias = isinstance(event, yaml.AliasEvent)
        known = self.anchors.get(str(event.anchor)) if is_alias else None
        before = self.count
        self.count += known[1] if known else 1
        depth += known[2] if known else 0  # an alias may stand in what another one brings in
        self.deepest, outside = depth, self.deepest
        if self.count > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_VALUES:,} values"
            raise self.stop(f"the file has more than {limit}, the limit for a profile", event)
        if known:
            self.deepest = max(depth, outside)
            return known[0]
        if is_alias:
            raise self.stop("the alias has no complete value before it", event)
        start, end, raw = event.start_mark, event.end_mark, None
        value: Any = []
        if event.tag not in (None, "!"):
            tag = quoted(event.tag.removeprefix("tag:yaml.org,2002:"))
            self.tell(f"the YAML tag {tag} has no meaning in a profile", self.span(start, end))
        if isinstance(event, yaml.ScalarEvent):
            raw = event.value if not event.style else None
            value = event.value if raw is None else meaning(raw)
        elif isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                value.append(self.value(inner, depth + 1))
            end = inner.end_mark
        else:
            value, end = self.mapping(depth + 1)
        node = Node(value, self.span(start, end), raw=raw)
        if event.anchor:
            self.anchors[event.anchor] = node, self.count - before, self.deepest - depth
        self.deepest = max(self.deepest, outside)
        return node

    def mapping(self, depth: int) -> tuple[dict[str, Node], Any]:
        """The keys of a mapping over those that `<<` brings in, and where it ends."""
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, value = self.value(event, depth), self.value(next(self.events), depth)
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
                own[name] = Node(value.value, value.span, key.span, value.raw)
        return {**merged, **own}, event.end_mark

    def tell(self, message: str, span: Span, code: str = "SD002", **more: Any) -> None:
        """Takes a problem of the form."""
        self.findings.append(problem(code, message, span, **more))

    def stop(self, message: str, event: Any) -> Stop:
        """The end of reading at an event."""
        return Stop(problem("SD002", message, self.span(event.start_mark, event.start_mark)))

    def span(self, start: Any, end: Any) -> Span:
        """A place, at least one character wide."""
        least = start.column + 2 if end.line == start.line else 1
        last = max(end.column + 1, least)
        return Span(self.file, start.line + 1, start.column + 1, end.line + 1, last)


_HINTS = {
    "found a tab character": "indent with spaces",
    "that cannot start any token": "indent with spaces, and put such a value in quotes",
    "mapping values are not allowed": "quote a value with `: `, or mend the line above",
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "comment or line break": "a value that starts with `>` or `|` needs quotes",
    "did not find expected key": "indent each key like the first one of its section",
}


def _syntax_problem(error: Any, text: str, *, file: str) -> Finding:
    """YAML's own reason at its place; what is left open, where it begins."""
    reason, lines = getattr(error, "problem", None) or "it cannot be read", text.splitlines()
    start = getattr(error, "context_mark", None)
    mark = getattr(error, "problem_mark", None) or start
    if mark is None:
        return problem("SD002", f"invalid YAML: {reason}", Span(file))
    help = next((hint for words, hint in _HINTS.items() if words in reason), None)
    reason += f" {error.context}" if error.context else ""
    reason += f", noticed in line {mark.line + 1}" if start and start.line != mark.line else ""
    at_end = not "".join(lines[mark.line :])[mark.column :].strip()
    if start and (at_end or "flow" in reason or "expected ':'" in reason):
        mark = start
    span = Span(file, mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)
    return problem("SD002", f"invalid YAML: {reason}", span, help=help)


COMMAND = "<command>"
"""The file name of a raw vLLM command that stands in the place of a profile."""
_KEPT: dict[str, bytes] = {}
"""Text without a file of its own by the name its findings have: stdin, an editor's buffer."""


def read(file: str) -> bytes:
    """What was kept under a name; else a file, or stdin (`-`), which is kept.

    Of more than a profile may have, one byte more. Raises OSError, and ValueError for a name that
    no file can have.
    """
    if file == "-" and file not in _KEPT:  # stdin can be read once; a profile may be loaded again
        _KEPT[file] = sys.stdin.buffer.read(MAX_BYTES + 1)
    return _KEPT[file] if file in _KEPT else read_named(file, MAX_BYTES + 1)


def keep(file: str, data: bytes) -> None:
    """From now on this is what stands in the file of that name."""
    _KEPT[file] = data


def recall(file: str) -> bytes:
    """What `read` gives, but nothing of a stdin that was not read. Raises as `read` does."""
    return b"" if file == "-" and file not in _KEPT else read(file)
