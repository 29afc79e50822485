"""`--set target.max_model_len=4096`: values from the command line over those of the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.paths import absolute_paths
from specserve.profile.problems import quoted
from specserve.profile.source import parse
from specserve.profile.tree import Node

_BEFORE = "value: "


def apply(tree: Node, settings: Iterable[str]) -> Node:
    """The tree with each `key.path=value` set; the value is YAML, its relative paths are the shell's.

    Findings point to the file `--set key.path`, columns to the value's text. Raises UsageError for text of
    another form.
    """
    for setting in settings:
        path, sign, text = setting.partition("=")
        keys = path.split(".")
        if not sign or not all(key.strip() for key in keys):
            raise UsageError(f"`--set` takes `key.path=value`; found {quoted(setting)}")
        if keys[0] == "extends":
            raise UsageError("`--set extends` has no effect: parents are read before", hint="edit the file")
        value = _parsed(text, path=path)
        lone = replace(value, value={keys[0]: _nested(keys[1:], value)})
        lone = absolute_paths(lone, folder=Path.cwd())
        tree = _over(tree, lone, keys, at=0)
    return tree


def _parsed(text: str, *, path: str) -> Node:
    file = f"--set {path}"
    data = f"{_BEFORE}{text}\n".encode(errors="surrogateescape")
    parsed, findings = parse(data, file=file)
    if parsed is None or findings or set(parsed.mapping or {}) != {"value"}:
        raise UsageError(f"the value of {quoted(file)} is not YAML", hint="quote it, for YAML and the shell")
    return replace(_shifted((parsed.mapping or {})["value"]), key=Span(file))


def _shifted(node: Node) -> Node:
    """The node with its columns counted from the start of the value."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _shifted(child) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_shifted(child) for child in value]
    return replace(node, value=value, span=_left(node.span), key=_left(node.key) if node.key else None)


def _left(span: Span) -> Span:
    width = len(_BEFORE)
    column = max(span.column - width, 1) if span.line == 1 else span.column
    end = max(span.end_column - width, column + 1) if span.end_line == 1 else span.end_column
    return replace(span, column=column, end_column=end)


def _nested(keys: list[str], value: Node) -> Node:
    for key in reversed(keys):
        value = Node({key: value}, value.span, key=value.key)
    return value


def _over(tree: Node, lone: Node, keys: list[str], *, at: int) -> Node:
    """The tree with the one value of `lone` at `keys`."""
    if tree.value is None:
        return lone
    values, key = tree.mapping, keys[at]
    if values is None:
        raise UsageError(f"`--set {'.'.join(keys)}`: {quoted('.'.join(keys[:at]))} is not a mapping")
    value = (lone.mapping or {})[key]
    if at + 1 < len(keys) and key in values:
        value = _over(values[key], value, keys, at=at + 1)
    return replace(tree, value={**values, key: value})
