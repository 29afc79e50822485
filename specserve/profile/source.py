"""YAML text to a tree of values that know line and column. Knows no schema and opens no file."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import yaml

from specserve.diagnostics import Finding, Related, Span
from specserve.profile.problems import problem
from specserve.profile.tree import Ambiguous, Node, Scalar

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 50

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.resolver.Resolver()
_TAG = "tag:yaml.org,2002:"
_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "value")}
_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)?(\.[0-9_]*)?([eE][-+]?[0-9]+)?$")
_TEXT_OF_TAB = "found character '\\t' that cannot start any token"


class _Stop(Exception):
    """The file is not worth reading on: its one finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def parse(data: bytes, *, file: str) -> tuple[Node | None, list[Finding]]:
    """The tree of a YAML document and every problem of its form; the tree is None where there is none to use."""
    findings: list[Finding] = []
    try:
        text = _decoded(data, file=file)
        root = _composed(text, file=file)
        tree = _Builder(file, findings).build(root, depth=0)
        if not isinstance(tree.value, dict):
            found = "a list" if isinstance(tree.value, list) else "a single value"
            raise _Stop(problem("SD003", f"a profile is a mapping of keys, this is {found}", tree.span))
    except _Stop as stop:
        return None, [*findings, stop.finding]
    return tree, findings


def _decoded(data: bytes, *, file: str) -> str:
    if len(data) > MAX_BYTES:
        size = f"{len(data):,} bytes"
        raise _Stop(problem("SD008", f"the file has {size}, a profile at most {MAX_BYTES:,}", Span(file)))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before) - (before.rfind(b"\n") + 1) + 1
        span = Span(file, line, column, line, column + 1)
        message = f"the file is not UTF-8: byte 0x{data[error.start]:02x}"
        raise _Stop(problem("SD001", message, span, help="save it as UTF-8")) from error
    if not text.strip():
        raise _Stop(problem("SD003", "the file is empty", Span(file), help="a profile needs `target.model`"))
    return text


def _composed(text: str, *, file: str) -> yaml.Node:
    try:
        depth = 0  # the composer recurses in C: the depth is bounded before it runs
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.events.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    span = _span(file, event.start_mark, event.end_mark)
                    raise _Stop(problem("SD008", f"values are nested deeper than {MAX_DEPTH} levels", span))
            elif isinstance(event, yaml.events.CollectionEndEvent):
                depth -= 1
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        raise _Stop(_syntax_problem(error, file=file)) from error
    except (yaml.YAMLError, RecursionError) as error:
        message = str(getattr(error, "reason", "")) or "the text is not YAML"
        position = int(getattr(error, "position", 0) or 0)
        line = text.count("\n", 0, position) + 1
        raise _Stop(problem("SD002", f"invalid YAML: {message}", Span(file, line, 1, line, 1))) from error
    if len(documents) > 1:
        span = _span(file, documents[1].start_mark, documents[1].start_mark)
        raise _Stop(problem("SD003", "the file holds several YAML documents, a profile is one", span))
    if not documents or documents[0] is None:
        raise _Stop(problem("SD003", "the file is empty", Span(file), help="a profile needs `target.model`"))
    document: yaml.Node = documents[0]
    return document


def _syntax_problem(error: yaml.MarkedYAMLError, *, file: str) -> Finding:
    mark = error.problem_mark or error.context_mark
    span = _span(file, mark, mark) if mark else Span(file)
    reason = error.problem or error.context or "unreadable"
    if reason == _TEXT_OF_TAB or "'\\t'" in reason:
        return problem("SD002", "a tab stands where YAML wants spaces", span, help="indent with spaces")
    help_text = None
    if "mapping values are not allowed" in reason:
        help_text = "a value that contains `: ` needs quotes"
    context = f" ({error.context})" if error.context and error.problem else ""
    return problem("SD002", f"invalid YAML: {reason}{context}", span, help=help_text)


def _span(file: str, start: Any, end: Any) -> Span:
    line, column = start.line + 1, start.column + 1
    return Span(
        file, line, column, end.line + 1, max(end.column + 1, column + 1 if end.line == start.line else 1)
    )


class _Builder:
    """Turns the composer's nodes into ours; counts values, so that aliases cannot blow the tree up."""

    def __init__(self, file: str, findings: list[Finding]) -> None:
        self.file, self.findings, self.count = file, findings, 0

    def build(self, node: yaml.Node, *, depth: int) -> Node:
        span = _span(self.file, node.start_mark, node.end_mark)
        self.count += 1
        if self.count > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"{MAX_VALUES:,} values" if self.count > MAX_VALUES else f"{MAX_DEPTH} levels"
            message = f"the aliases of this file expand to more than {limit}"
            raise _Stop(problem("SD008", message, span))
        if node.tag not in _TAGS and node.tag != f"{_TAG}merge":
            tag = node.tag.removeprefix(_TAG)
            self.findings.append(problem("SD002", f"the YAML tag `{tag}` has no meaning in a profile", span))
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, depth=depth), span)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.build(child, depth=depth + 1) for child in node.value], span)
        return self._scalar(node, span)

    def _mapping(self, node: yaml.MappingNode, *, depth: int) -> dict[str, Node]:
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key_span = _span(self.file, key_node.start_mark, key_node.end_mark)
            if key_node.tag == f"{_TAG}merge":
                merged = {**self._inherited(value_node, depth=depth), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.findings.append(problem("SD002", "a key must be a single word", key_span))
                continue
            key = str(key_node.value)
            value = replace(self.build(value_node, depth=depth + 1), key=key_span)
            if key in own:
                first = own[key].key or key_span
                related = (Related(first, "first written here"),)
                self.findings.append(
                    problem("SD004", f"the key `{key}` stands twice", key_span, related=related)
                )
                continue
            own[key] = value
        return {**merged, **own}

    def _inherited(self, node: yaml.Node, *, depth: int) -> dict[str, Node]:
        """What `<<:` brings: one mapping, or a list of them of which the first wins."""
        built = self.build(node, depth=depth + 1)
        parts = built.value if isinstance(built.value, list) else [built]
        values: dict[str, Node] = {}
        for part in parts:
            if part.mapping is None:
                self.findings.append(problem("SD002", "`<<` needs a mapping", built.span))
            else:
                values = {**part.mapping, **values}
        return values

    def _scalar(self, node: yaml.ScalarNode, span: Span) -> Node:
        text = str(node.value)
        if node.style or (node.tag == f"{_TAG}str" and _implicit_tag(text) != node.tag):
            return Node(text, span)  # quoted, a block, or tagged !!str
        return Node(_plain(text), span, raw=text)


def _implicit_tag(text: str) -> str:
    """The tag that YAML 1.1 gives a plain scalar by itself."""
    return str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))


def _plain(text: str) -> Scalar:
    """A plain scalar as a person means it: `1e-3` is a number, `12:30:45` and dates are text."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.match(text):
        digits = text.replace("_", "")
        return int(digits, 16) if "x" in digits else int(digits)
    if _LEADING_ZERO.match(text):
        return Ambiguous(text)
    if any(character.isdigit() for character in text) and _FLOAT.match(text):
        return float(text.replace("_", ""))
    return {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}.get(text.lower(), text)
