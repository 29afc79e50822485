"""Relative paths of a profile, seen from the file that wrote them. Looks at no disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from specserve.profile.tree import Node

_SECTIONS = ("target", "speculation", "alternatives", "engine", "frontend")


def absolute_paths(tree: Node, *, folder: Path) -> Node:
    """The tree with each path that starts with `.`, `..` or `~` made absolute, seen from `folder`."""
    values = tree.mapping or {}
    seen = {key: _absolute(node, folder) if key in _SECTIONS else node for key, node in values.items()}
    return replace(tree, value=seen)


def _absolute(node: Node, folder: Path) -> Node:
    if isinstance(node.value, dict):
        return replace(node, value={key: _absolute(child, folder) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_absolute(child, folder) for child in node.value])
    written = node.value
    if not isinstance(written, str):
        return node
    if written in (".", "..") or written.startswith(("./", "../")):
        place = os.path.normpath(folder / written)
    elif written.startswith("~/"):
        place = os.path.expanduser(written)  # noqa: PTH111 - Path's form raises where there is no home
    else:
        return node
    return replace(node, value=place, raw=place if node.raw is not None else None)
