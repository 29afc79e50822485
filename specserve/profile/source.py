"""The bytes of profiles, wherever they come from, and YAML text to a tree of values that know line and column."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import yaml

from specserve.diagnostics import Finding, Related, Span
from specserve.errors import CONTROL, quoted
from specserve.files import read_named
from specserve.profile.problems import Stop, hint, ordered, problem
from specserve.profile.values import Node, meaning

MAX_VALUES = 20_000
MAX_DEPTH = 50

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_TEXT = f"{_TAG}str"
_KINDS = ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "value", "merge")
_TAGS = {_TAG + kind for kind in _KINDS}
_RESOLVER = yaml.resolver.Resolver()


class Builder:
    """Builds one file's tree; counts values, so that aliases cannot blow it up."""

    def __init__(self, file: str, findings: list[Finding]) -> None:
        self.file, self.findings = file, findings
        self.count = 0
        self.open: set[int] = set()

    def build(self, node: yaml.Node) -> Node:
        """The value of a node and all below. Raises Stop for aliases that expand without bounds."""
        span = self.span(node)
        self.count += 1
        if self.count > MAX_VALUES:
            message = f"the aliases of this file expand to more than {MAX_VALUES:,} values"
            raise Stop(problem("SD002", message, span))
        if id(node) in self.open:
            raise Stop(problem("SD002", "the value contains an alias of itself", span))
        if node.tag not in _TAGS:
            tag = quoted(node.tag.removeprefix(_TAG))
            self.findings.append(problem("SD002", f"the YAML tag {tag} has no meaning in a profile", span))
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, span)
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            built = Node(self.mapping(node), span)
        else:
            built = Node([self.build(child) for child in node.value], span)
        self.open.remove(id(node))
        return built

    def mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        """The keys of a mapping over those that `<<` brings in."""
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key_span = self.span(key_node)
            if key_node.tag == _MERGE:
                merged = {**self.inherited(value_node), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.findings.append(problem("SD002", "a key must be a text", key_span))
                continue
            key = str(key_node.value)
            if CONTROL.search(key):
                message = f"the key {quoted(key)} holds control characters"
                self.findings.append(problem("SD002", message, key_span))
                continue
            value = replace(self.build(value_node), key=key_span)
            if key in own:
                related = (Related(own[key].key or key_span, "first written here"),)
                message = f"the key {quoted(key)} occurs twice"
                self.findings.append(problem("SD004", message, key_span, related=related))
                continue
            own[key] = value
        return {**merged, **own}

    def inherited(self, node: yaml.Node) -> dict[str, Node]:
        """What `<<:` brings: one mapping, or a list of them of which the first wins."""
        built = self.build(node)
        parts = built.value if isinstance(built.value, list) else [built]
        values: dict[str, Node] = {}
        for part in parts:
            if part.mapping is None:
                message = "`<<` needs a mapping, or a list of mappings"
                self.findings.append(problem("SD002", message, part.span))
            else:
                values = {**part.mapping, **values}
        return values

    def span(self, node: yaml.Node) -> Span:
        """The place of a node, at least one character wide."""
        start, end = node.start_mark, node.end_mark
        least = start.column + 2 if end.line == start.line else 1
        return Span(self.file, start.line + 1, start.column + 1, end.line + 1, max(end.column + 1, least))


def _scalar(node: yaml.ScalarNode, span: Span) -> Node:
    text = str(node.value)
    if node.style or (node.tag == _TEXT and not _is_text(text)):
        return Node(text, span)  # quoted, a block, or tagged !!str
    return Node(meaning(text), span, raw=text)


def _is_text(text: str) -> bool:
    """Whether YAML 1.1 reads a plain scalar as a text."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag == _TEXT


def is_plain_text(text: str) -> bool:
    """Whether every reader takes the text for one without quotes: YAML of any version, and a person."""
    return _is_text(text) and type(meaning(text)) is str and text.lower() not in ("y", "n")


MAX_BYTES = 1_000_000  # far above any profile, far below what hurts

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # where libyaml ends a line
_WANTS_MORE = re.compile(r"(did not find )?expected ',' or '[\]}]'")
_PAIRS = {"[": "]", "{": "}"}
_BRACKETS = re.compile(
    r"""(?<=[\s\[{,:])(?:"(?:[^"\\]|\\[\s\S])*"|'[^']*')|(?<=\s)#[^\n]*|[\[\]{}]""",
)
_HELP = "a profile needs `target.model`"


def parse(data: bytes, *, file: str, is_value: bool = False) -> tuple[Node | None, list[Finding]]:
    """The tree of a YAML document and every problem of its form; None if there is no tree to use.

    `is_value`: the document is one value of a profile, of any kind.
    """
    findings: list[Finding] = []
    try:
        text = _decoded(data, file=file)
        root = _composed(text, file=file)
        tree = Builder(file, findings).build(root)
        if tree.mapping is None and not is_value:
            found = "a list" if isinstance(tree.value, list) else "a single value"
            raise Stop(problem("SD002", f"a profile must be a mapping of keys; found {found}", tree.span))
    except Stop as stop:
        return None, ordered([*findings, stop.finding])
    return tree, ordered(findings)


def _decoded(data: bytes, *, file: str) -> str:
    if len(data) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES:,} bytes, the limit for a profile"
        raise Stop(problem("SD002", message, Span(file)))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (len(data) - len(error.object))  # the codec has taken the mark off
        span = _place(data[:start].decode("utf-8-sig"), file=file)
        message = f"the file is not UTF-8: byte 0x{data[start]:02x}"
        raise Stop(problem("SD002", message, span, help="save it as UTF-8")) from error
    if not text.strip():
        raise Stop(_empty(file))
    unprintable = _UNPRINTABLE.search(text)
    if unprintable:
        message = f"the file has a character that YAML does not allow: U+{ord(unprintable.group()):04X}"
        raise Stop(problem("SD002", message, _place(text[: unprintable.start()], file=file)))
    return text


def _place(before: str, *, file: str) -> Span:
    """The place of the character that follows this text."""
    lines = _BREAK.split(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


def _empty(file: str) -> Finding:
    return problem("SD002", "the file is empty", Span(file), help=_HELP)


def _composed(text: str, *, file: str) -> yaml.Node:
    try:
        _check_events(yaml.parse(text, Loader=_LOADER), file=file)
        documents = [document for document in yaml.compose_all(text, Loader=_LOADER) if document is not None]
    except yaml.MarkedYAMLError as error:
        raise Stop(_syntax_problem(error, text, file=file)) from error
    except (yaml.YAMLError, RecursionError) as error:
        message = f"invalid YAML: {getattr(error, 'reason', 'unreadable')}"
        raise Stop(problem("SD002", message, Span(file))) from error
    if not documents or (
        isinstance(documents[0], yaml.ScalarNode) and not (documents[0].style or documents[0].value)
    ):
        raise Stop(_empty(file))
    document: yaml.Node = documents[0]
    return document


def _check_events(events: Iterable[yaml.Event], *, file: str) -> None:
    """Raises Stop for a second document, and for what is too large or too deep to compose."""
    depth = count = documents = 0
    for event in events:
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        count += isinstance(event, yaml.NodeEvent)
        if documents > 1:
            message = "the file holds several YAML documents, but a profile is a single one"
            raise Stop(problem("SD002", message, _at(event.start_mark, file=file)))
        if depth > MAX_DEPTH or count > MAX_VALUES:
            limit = f"{MAX_DEPTH} levels of nesting" if depth > MAX_DEPTH else f"{MAX_VALUES:,} values"
            message = f"the file has more than {limit}, the limit for a profile"
            raise Stop(problem("SD002", message, _at(event.start_mark, file=file)))


def _at(mark: Any, *, file: str) -> Span:
    """One character."""
    return Span(file, mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, *, file: str) -> Finding:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return problem("SD002", "invalid YAML", Span(file))
    lines = _BREAK.split(text)
    start = error.context_mark
    at_end = not "".join(lines[mark.line :])[mark.column :].strip()
    opened = text[start.index :] if start and start.index is not None else ""
    if _WANTS_MORE.match(error.problem or "") and _is_open(opened):
        return _unclosed(opened, start, mark, file=file)
    if start and (at_end or error.problem == "could not find expected ':'"):
        mark = start  # what is open at the end is reported where it begins
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    column = indent.find("\t") if "\t" in indent and mark.column <= len(indent) else mark.column
    span = Span(file, mark.line + 1, column + 1, mark.line + 1, column + 2)
    character = line[column : column + 1]
    if character == "\t":
        return problem(
            "SD002",
            "a tab is used for indentation, which YAML does not allow",
            span,
            help="indent with spaces",
        )
    reason = error.problem or "unreadable"
    if reason.startswith("found character") and character:
        return problem(
            "SD002", f"no value can start with `{character}`", span, help="put the value in quotes"
        )
    context = f" {error.context}" if error.context else ""
    related: tuple[Related, ...] = ()
    if start and (start.line, start.column) != (mark.line, mark.column):
        related = (Related(_at(start, file=file), "which begins here"),)
    message = f"invalid YAML: {reason}{context}"
    return problem("SD002", message, span, help=hint(reason, lines, mark.line, mark.column), related=related)


def _is_open(text: str) -> bool:
    """Whether the bracket that the text begins with is never closed, quotes and comments passed over."""
    expected: list[str] = []
    for match in _BRACKETS.finditer(text):
        character = match.group()
        if character in _PAIRS:
            expected.append(_PAIRS[character])
        elif character in _PAIRS.values():
            if character != expected.pop():
                return True
            if not expected:
                return False
    return bool(expected)


def _unclosed(opened: str, start: Any, mark: Any, *, file: str) -> Finding:
    """The problem at the bracket itself: the place where YAML noticed it is only where it could not go on."""
    kind = "list" if opened[0] == "[" else "mapping"
    related: tuple[Related, ...] = ()
    if (start.line, start.column) != (mark.line, mark.column) and mark.index < start.index + len(
        opened.rstrip()
    ):
        related = (Related(_at(mark, file=file), "the parser stops here"),)
    message = f"invalid YAML: `{opened[0]}` is not closed"
    help = f"close the {kind} with `{_PAIRS[opened[0]]}`"
    return problem("SD002", message, _at(start, file=file), help=help, related=related)


COMMAND = "<command>"
"""The file name of a raw vLLM command that stands in the place of a profile."""
Reader = Callable[[str], bytes]

_KEPT: dict[str, bytes] = {}
"""Text without a file of its own by the name its findings have: stdin, an editor's buffer, a command line."""
_READERS: list[Reader] = []


def read(file: str) -> bytes:
    """A file, or stdin (`-`), which is kept; of a larger one than a profile may be, one byte more than that.

    Raises OSError, and ValueError for a name that no file can have.
    """
    if file == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        if data or file not in _KEPT:  # stdin can be read once, and a profile may be loaded again
            _KEPT[file] = data
    if file in _KEPT:
        return _KEPT[file]
    return _READERS[-1](file) if _READERS else read_file(file)


def keep(file: str, data: bytes) -> None:
    """From now on this is what stands in the file of that name, for findings and for the lines they show."""
    _KEPT[file] = data


def recall(file: str) -> bytes:
    """What was read under a name; of a file, what stands there now. Raises as `read` does."""
    if file == "-":
        return _KEPT.get(file, b"")
    return _KEPT[file] if file in _KEPT else read_file(file)


def read_file(file: str) -> bytes:
    """A file on the disk; of a larger one than a profile may be, one byte more than that. Raises as `read` does."""
    return read_named(file, MAX_BYTES + 1)


@contextmanager
def read_by(reader: Reader) -> Iterator[None]:
    """Files come from `reader` (name → bytes, or OSError) while this lasts, such as those of a commit."""
    _READERS.append(reader)
    try:
        yield
    finally:
        _READERS.pop()
