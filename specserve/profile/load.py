"""A file to a Profile, with its parents and `--set`, or to all that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import ProfileError, UsageError, quoted, system_reason
from specserve.profile.schema import BASELINE, Profile
from specserve.profile.source import read
from specserve.profile.tree import MAX_DEPTH, Node, Stop, merged, ordered, parse, problem, shown
from specserve.profile.validate import TOP, read_profile

MAX_PARENTS = 10
_WITH_PATHS = ("target", "speculation", "alternatives", "engine", "frontend")
MAKERS: dict[str, Callable[[Iterable[str]], tuple[Profile | None, list[Finding]]]] = {}
"""Profiles that are no files, but command lines in memory: each takes what `examine` does."""


def absolute_paths(tree: Node, *, folder: Path) -> Node:
    """The tree with each path that starts with `.`, `..` or `~` made absolute, from `folder`."""
    values = tree.mapping or {}
    seen = {key: _absolute(values[key], folder) for key in _WITH_PATHS if key in values}
    return replace(tree, value={**values, **seen})


def _absolute(node: Node, folder: Path) -> Node:
    value = seen = node.value
    if isinstance(value, dict):
        seen = {key: _absolute(child, folder) for key, child in value.items()}
    elif isinstance(value, list):
        seen = [_absolute(child, folder) for child in value]
    if not isinstance(value, str):
        return node if seen == value else replace(node, value=seen)
    if value not in (".", "..") and not value.startswith(("./", "../", "~/")):
        return node
    # Path's form raises where there is no home
    place = os.path.normpath(folder / value) if value[0] == "." else os.path.expanduser(value)  # noqa: PTH111
    raw = place if node.raw is not None else None
    return replace(node, value=place, raw=raw, is_relative=value[0] == ".")


def apply(tree: Node, settings: Iterable[str]) -> Node:
    """The tree with each `key.path=value` set; the value is YAML, its paths are the shell's.

    Findings point to the file `--set key.path`, columns to the value's text. Raises UsageError
    for text of another form.
    """
    for setting in settings:
        path, sign, text = setting.partition("=")
        keys, file = path.split("."), f"--set {path}"
        if not sign or not all(key.strip() for key in keys) or len(keys) > MAX_DEPTH:
            raise UsageError(f"`--set` takes `key.path=value`; found {quoted(setting)}")
        if keys[0] == "extends":
            raise UsageError("`--set extends` has no effect", hint="edit the file")
        data = (text if text.strip() else "null").encode(errors="surrogateescape")
        value, findings = parse(data, file=file, is_value=True)
        if value is None or findings:
            hint = "quote it for both YAML and the shell"
            raise UsageError(f"the value of {quoted(file)} is not YAML", hint=hint)
        value = replace(value, key=Span(file))
        value = _absolute(value, Path.cwd()) if keys[0] in _WITH_PATHS else value
        tree = _with_value(tree, keys, value, file=file)
    return tree


def _with_value(tree: Node, keys: list[str], value: Node, *, file: str) -> Node:
    """The tree with one value at these keys."""
    if not keys:
        return value
    if tree.value is None:
        tree = replace(value, value={})
    if tree.mapping is None:
        raise UsageError(f"`{file}`: {shown(tree)} has no keys")
    inner = tree.mapping.get(keys[0], replace(value, value=None))
    inner = _with_value(inner, keys[1:], value, file=file)
    return replace(tree, value={**tree.mapping, keys[0]: inner})


def with_parents(tree: Node, *, file: str, folder: Path) -> tuple[Node, list[Finding]]:
    """The tree over its parents, each with its own relative paths made absolute; their problems.

    `folder` is where the file's relative paths begin; a profile from stdin (`-`) has no file of
    its own. Raises Stop for a parent that cannot be used.
    """
    start, found = folder, list[Finding]()
    above = "" if file == "-" else os.path.dirname(file)  # noqa: PTH120
    trees = [absolute_paths(tree, folder=folder)]
    while (node := (trees[-1].mapping or {}).get("extends")) and node.value is not None:
        written = str(node.value).strip() if isinstance(node.value, str) else ""
        path = Path(os.path.realpath(folder / written.replace("\0", "?")))
        name, reason, data = os.path.normpath(Path(above, written)), "", b""
        if not written:
            reason = "is not the path of one file"
        elif len(trees) > MAX_PARENTS:
            reason = f"is one of more than {MAX_PARENTS}, or they go round in a circle"
        elif not path.is_relative_to(_root(start)):
            reason = "is outside of this profile's repository or folder"
        else:
            try:
                data = read(str(path))
            except OSError as error:
                reason = f"cannot be read: {system_reason(error)}"
        parent, problems = (None, []) if reason else parse(data, file=name)
        keys = set((parent.mapping if parent else None) or {})
        if not reason and not (keys & {"target", "extends"} or (keys and keys <= set(TOP))):
            # its own problem may quote a file that nobody meant to show
            line = f": YAML of line {problems[-1].span.line} cannot be read" if not parent else ""
            reason = f"is not a profile{line}"
        if reason or parent is None:
            text = f"the parent {quoted(written) if written else shown(node)} {reason}"
            raise Stop(problem("SD009", text, node.span._replace(path="extends")))
        folder, above = path.parent, str(Path(name).parent)
        trees.append(absolute_paths(parent, folder=folder))
        found += problems
    result = trees.pop()
    while trees:
        kept = {key: item for key, item in (result.mapping or {}).items() if key != "name"}
        result = merged(replace(result, value=kept), trees.pop())
    return result, found


def _root(folder: Path) -> Path:
    """The repository around a folder; else the working directory around it; else the folder."""
    folder, here = Path(os.path.realpath(folder)), Path.cwd()
    around = (place for place in (folder, *folder.parents) if (place / ".git").exists())
    return next(around, here if folder.is_relative_to(here) else folder)


def load_profile(
    path: str | os.PathLike[str], *, settings: Iterable[str] = (), alternative: str | None = None
) -> Profile:
    """The profile in a file (`-`: stdin), with `--set` values over it, and a chosen alternative.

    Raises ProfileError with every problem of the file, UsageError for a malformed setting.
    """
    profile, findings = examine(path, settings=settings)
    findings = [finding for finding in findings if finding.severity is Severity.ERROR]
    if profile is None or findings:
        count = f"{len(findings)} problem{'s' if len(findings) > 1 else ''}"
        text = f"`{os.fspath(path)}` is not a valid profile: {count}"
        raise ProfileError(text, findings=tuple(findings))
    return with_alternative(profile, alternative)


def examine(
    path: str | os.PathLike[str], *, settings: Iterable[str] = (), data: bytes | None = None
) -> tuple[Profile | None, list[Finding]]:
    """The profile, None where vLLM would not take it either, and every problem in file order.

    `data` is what stands in the file, if it is not to be read. Raises UsageError for a malformed
    setting.
    """
    file, found = os.fspath(path), list[Finding]()
    if file in MAKERS:
        return MAKERS[file](settings)
    try:
        tree, found = parse(read(file) if data is None else data, file=file)
        if tree is None:
            return None, found
        # a symbolic link's own folder counts, as for the shell
        folder = Path.cwd() if file == "-" else Path(os.path.abspath(file)).parent  # noqa: PTH100
        tree, more = with_parents(tree, file=file, folder=folder)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        text = f"cannot read the file: {system_reason(error)}"
        return None, [problem("SD002", text, Span(file))]
    except Stop as stop:
        return None, ordered([*found, stop.finding])
    profile, problems = read_profile(apply(tree, settings), file=file)
    return (None if found or more else profile), ordered([*found, *more, *problems])


def with_alternative(profile: Profile, name: str | None) -> Profile:
    """The profile with one of its alternatives as `speculation`; `baseline`: with none.

    Raises ProfileError if there is none of that name.
    """
    if name == BASELINE:
        return replace(profile, speculation=None)
    if name is None:
        return profile
    if name not in profile.alternatives:
        known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
        text = f"`{profile.file}` has no alternative {quoted(name)}: it has {known}"
        hint = "`--alternative baseline` is the profile without speculation"
        raise ProfileError(text, hint=hint)

    kept = (path for path in profile.nodes if path.partition(".")[0] != "speculation")
    nodes = {path: profile.nodes[path] for path in kept}
    nodes |= profile.nodes[f"alternatives.{name}"].nodes("speculation")
    return replace(profile, speculation=profile.alternatives[name], nodes=nodes)
