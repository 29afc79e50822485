"""`--set target.max_model_len=4096`: values from the command line over those of the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from specserve.errors import UsageError
from specserve.profile.source import parse
from specserve.profile.tree import Node


def apply(tree: Node, settings: Iterable[str]) -> Node:
    """The tree with each `key.path=value` set; the value is YAML. Raises UsageError for text of another form."""
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign or not all(path.split(".")):
            raise UsageError(f"`--set {setting}` is not of the form key.path=value")
        file = f"--set {path}"
        parsed, findings = parse(f"value: {text}\n".encode(), file=file)
        if parsed is None or findings or list(parsed.mapping or {}) != ["value"]:
            raise UsageError(f"the value of `--set {setting}` is not YAML", hint="quote it for the shell")
        value = (parsed.mapping or {})["value"]
        shifted = replace(
            value, span=replace(value.span, column=1, end_column=2), key=replace(value.span, file=file)
        )
        tree = _set(tree, path.split("."), shifted, whole=path)
    return tree


def _set(tree: Node, path: list[str], value: Node, *, whole: str) -> Node:
    key, rest = path[0], path[1:]
    values = tree.mapping
    if values is None:
        raise UsageError(f"`--set {whole}`: `{key}` lies below a value that is no mapping")
    if not rest:
        return replace(tree, value={**values, key: value})
    below = values.get(key)
    if below is None or below.value is None:
        below = Node({}, value.span, key=value.key)
    return replace(tree, value={**values, key: _set(below, rest, value, whole=whole)})
