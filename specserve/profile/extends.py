"""The parents of a profile: found in its own folder tree, laid underneath, cycles refused."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.diagnostics import Finding, Related
from specserve.profile.paths import absolute_paths
from specserve.profile.problems import problem, quoted
from specserve.profile.schema import TOP
from specserve.profile.source import parse
from specserve.profile.texts import read
from specserve.profile.tree import Node, merged

MAX_PARENTS = 10
_NOT_INHERITED = ("extends", "name")
_REASONS = {
    "SD001": "it is not UTF-8",
    "SD002": "it is not valid YAML",
    "SD003": "it is no mapping of keys",
    "SD008": "it is too large",
}


@dataclass(frozen=True, slots=True)
class _Lineage:
    """Where a search for parents began, and the files on the way from the child to here, resolved."""

    root: Path
    files: tuple[Path, ...]


def with_parents(tree: Node, *, file: str, folder: Path) -> tuple[Node, list[Finding]]:
    """The tree over its parents, each with its own relative paths made absolute; and what is wrong with them.

    `folder` is where the file's relative paths begin; a profile from stdin (`-`) has no file of its own.
    """
    files = () if file == "-" else (Path(os.path.realpath(file)),)
    shown = "" if file == "-" else os.path.dirname(file)  # noqa: PTH120 - as it was written
    return _with_parents(tree, folder=folder, shown=shown, lineage=_Lineage(_tree_root(folder), files))


def _with_parents(tree: Node, *, folder: Path, shown: str, lineage: _Lineage) -> tuple[Node, list[Finding]]:
    tree = absolute_paths(tree, folder=folder)
    node = (tree.mapping or {}).get("extends")
    if node is None or node.value is None:
        return tree, []
    if not isinstance(node.value, str) or not node.value.strip() or "\0" in node.value:
        return tree, [_bad(node, "`extends` must be the path of one file", help="chain files for more")]
    path = Path(os.path.realpath(folder / node.value))
    refused = _refusal(node, path, lineage=lineage)
    if refused:
        return tree, [refused]
    parent, findings = _read(node, path, shown=os.path.normpath(Path(shown, node.value)))
    if parent is None:
        return tree, findings
    parent, more = _with_parents(
        parent,
        folder=path.parent,
        shown=os.path.normpath(Path(shown, node.value).parent),
        lineage=replace(lineage, files=(*lineage.files, path)),
    )
    values = {key: child for key, child in (parent.mapping or {}).items() if key not in _NOT_INHERITED}
    return merged(replace(parent, value=values), tree), [*findings, *more]


def _bad(node: Node, message: str, *, help: str | None = None) -> Finding:
    return problem("SD009", message, replace(node.span, path="extends"), help=help)


def _refusal(node: Node, path: Path, *, lineage: _Lineage) -> Finding | None:
    """The finding for a parent that may not be read at all."""
    written = quoted(str(node.value))
    if path in lineage.files:
        circle = lineage.files[lineage.files.index(path) :]
        if len(circle) == 1:
            return _bad(node, "`extends` names the file that it stands in")
        chain = " → ".join(quoted(file.name) for file in (*circle, path))
        return _bad(node, f"`extends` goes round in a circle: {chain}")
    if len(lineage.files) > MAX_PARENTS:
        return _bad(node, f"`extends` leads through more than {MAX_PARENTS} parents")
    if not path.is_relative_to(lineage.root):
        message = f"the parent {written} lies outside of this profile's repository or folder"
        return _bad(node, message, help="copy it next to the profile")
    return None


def _tree_root(folder: Path) -> Path:
    """The repository around a folder; else the working directory if it holds the folder; else the folder."""
    folder = Path(os.path.realpath(folder))
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return place
    here = Path.cwd()
    return here if folder.is_relative_to(here) else folder


def _read(node: Node, path: Path, *, shown: str) -> tuple[Node | None, list[Finding]]:
    """The parent's tree. What is no profile is told at `extends`, without a word of its text."""
    written = quoted(str(node.value))
    try:
        if path.exists() and not path.is_file():
            return None, [_bad(node, f"the parent {written} is not a file")]
        data = read(str(path))
    except OSError as error:
        reason = (error.strerror or "it cannot be opened").lower()
        return None, [_bad(node, f"cannot read the parent {written}: {reason}")]
    tree, findings = parse(data, file=shown)
    if tree is None:
        first = findings[-1]
        reason = f"{_REASONS[first.code]} (line {first.span.line})"
        return None, [_bad(node, f"the parent {written} is not a profile: {reason}")]
    if not _is_profile(tree):
        message = f"the parent {written} is not a profile: it has neither `target` nor `extends`"
        return None, [_bad(node, message)]
    related = (Related(node.span, "extended here"),)
    return tree, [replace(finding, related=(*finding.related, *related)) for finding in findings]


def _is_profile(tree: Node) -> bool:
    """A base may hold no target; but then nothing else than keys of a profile."""
    keys = set(tree.mapping or {})
    return bool(keys & {"target", "extends"}) or (bool(keys) and keys <= set(TOP))
