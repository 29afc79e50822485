"""The YAML composer's nodes to a tree of our own: aliases and merge keys followed. Knows no YAML syntax."""

from __future__ import annotations

from dataclasses import replace

import yaml

from specserve.diagnostics import Finding, Related, Span
from specserve.profile.problems import CONTROL, Stop, problem, quoted
from specserve.profile.scalars import meaning
from specserve.profile.tree import Node

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
            raise Stop(problem("SD008", message, span))
        if id(node) in self.open:
            raise Stop(problem("SD008", "an alias of this value stands inside of the value", span))
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
                message = f"the key {quoted(key)} stands twice"
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
    if node.style or (node.tag == _TEXT and _implicit_tag(text) != _TEXT):
        return Node(text, span)  # quoted, a block, or tagged !!str
    return Node(meaning(text), span, raw=text)


def _implicit_tag(text: str) -> str:
    """The tag that YAML 1.1 gives a plain scalar by itself."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag
