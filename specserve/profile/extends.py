"""The parents of a profile: found in its own folder tree, laid underneath, cycles refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specserve.diagnostics import Finding, Related
from specserve.profile.problems import problem
from specserve.profile.schema import TOP
from specserve.profile.source import MAX_BYTES, parse
from specserve.profile.tree import Node, merged
from specserve.profile.validate import absolute_paths

MAX_PARENTS = 10


def with_parents(tree: Node, *, folder: Path, seen: tuple[Path, ...]) -> tuple[Node, list[Finding]]:
    """The tree over its parents, each with its own relative paths made absolute; and every problem on the way.

    `seen` holds the resolved files from the first child on; a profile from stdin has none.
    """
    tree = absolute_paths(tree, folder=folder)
    top = tree.mapping or {}
    node = top.get("extends")
    if node is None or node.value is None:
        return tree, []
    if not isinstance(node.value, str):
        return tree, [problem("SD009", "`extends` names one file", node.span, help="chain files for more")]
    path = (folder / node.value).resolve()
    refused = _refusal(node, path, folder=folder, seen=seen)
    if refused:
        return tree, [refused]
    parent, findings = _read(node, path, folder=folder)
    if parent is None:
        return tree, findings
    parent, more = with_parents(parent, folder=path.parent, seen=(*seen, path))
    values = {key: child for key, child in (parent.mapping or {}).items() if key not in ("extends", "name")}
    return merged(replace(parent, value=values), tree), [*findings, *more]


def _refusal(node: Node, path: Path, *, folder: Path, seen: tuple[Path, ...]) -> Finding | None:
    """The finding for a parent that may not be read at all."""
    if path in seen:
        chain = " → ".join(file.name for file in (*seen[seen.index(path) :], path))
        return problem("SD009", f"`extends` goes round in a circle: {chain}", node.span)
    if len(seen) > MAX_PARENTS:
        return problem("SD009", f"more than {MAX_PARENTS} parents", node.span)
    root = _tree_root(folder)
    if not path.is_relative_to(root):
        text = f"the parent `{node.value}` lies outside of this profile's repository or folder"
        return problem("SD009", text, node.span, help="copy it next to the profile")
    return None


def _tree_root(folder: Path) -> Path:
    """The repository around a folder; else the working directory if it holds the folder; else the folder."""
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return place
    return Path.cwd() if folder.is_relative_to(Path.cwd()) else folder


def _read(node: Node, path: Path, *, folder: Path) -> tuple[Node | None, list[Finding]]:
    """The parent's tree. What is no profile is told at `extends`, without a word of its text."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        text = f"cannot read the parent `{node.value}`: {(error.strerror or str(error)).lower()}"
        return None, [problem("SD009", text, node.span)]
    shown = str(folder / str(node.value))
    tree, findings = parse(data, file=shown)
    if tree is None or not set(tree.mapping or {}) & set(TOP):
        line = f" (line {findings[0].span.line})" if findings else ""
        return None, [problem("SD009", f"the parent `{node.value}` is not a profile{line}", node.span)]
    related = (Related(node.span, "extended here"),)
    return tree, [replace(finding, related=(*finding.related, *related)) for finding in findings]
