"""A file to a Profile, with its parents and `--set`, or to all that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.errors import ProfileError, UsageError, quoted, system_reason
from specserve.profile.problems import ordered, problem
from specserve.profile.schema import BASELINE, TOP, Profile
from specserve.profile.source import parse, read
from specserve.profile.validate import read_profile
from specserve.profile.values import Node, merged

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
    is_relative = written in (".", "..") or written.startswith(("./", "../"))
    if is_relative:
        place = os.path.normpath(folder / written)
    elif written.startswith("~/"):
        place = os.path.expanduser(written)  # noqa: PTH111 - Path's form raises where there is no home
    else:
        return node
    raw = place if node.raw is not None else None
    return replace(node, value=place, raw=raw, is_relative=is_relative)


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
            raise UsageError(
                "`--set extends` has no effect because the profiles that `extends` names are read before `--set`",
                hint="edit the file",
            )
        value = _set_value(text, file=f"--set {path}")
        for key in reversed(keys):
            value = Node({key: value}, value.span, key=value.key)
        tree = _over(tree, absolute_paths(value, folder=Path.cwd()), keys, at=0)
    return tree


def _set_value(text: str, *, file: str) -> Node:
    if not text.strip():
        return Node(None, Span(file), key=Span(file))
    parsed, findings = parse(text.encode(errors="surrogateescape"), file=file, is_value=True)
    if parsed is None or findings:
        raise UsageError(
            f"the value of {quoted(file)} is not YAML", hint="quote it for both YAML and the shell"
        )
    return replace(parsed, key=Span(file))


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


MAX_PARENTS = 10
_ABSENT = "no such file"
_NOT_INHERITED = ("extends", "name")


def with_parents(tree: Node, *, file: str, folder: Path) -> tuple[Node, list[Finding]]:
    """The tree over its parents, each with its own relative paths made absolute; and what is wrong with them.

    `folder` is where the file's relative paths begin; a profile from stdin (`-`) has no file of its own.
    """
    files = () if file == "-" else (Path(os.path.realpath(file)),)
    shown = "" if file == "-" else os.path.dirname(file)  # noqa: PTH120 - as it was written
    return _over_parents(tree, folder=folder, shown=shown, root=_tree_root(folder), files=files)


def _over_parents(
    tree: Node, *, folder: Path, shown: str, root: Path, files: tuple[Path, ...]
) -> tuple[Node, list[Finding]]:
    tree = absolute_paths(tree, folder=folder)
    node = (tree.mapping or {}).get("extends")
    if node is None or node.value is None:
        return tree, []
    if not isinstance(node.value, str) or not node.value.strip() or "\0" in node.value:
        way_out = "to extend several, let each extend the next"
        return tree, [_bad(node, "`extends` must be the path of one file", help=way_out)]
    path = Path(os.path.realpath(folder / node.value))
    refused = _refusal(node, path, root=root, files=files)
    if refused:
        return tree, [refused]
    name = Path(shown, node.value)
    parent, findings = _read(node, path, shown=os.path.normpath(name))
    if parent is None:
        return tree, findings
    above = os.path.normpath(name.parent)
    parent, more = _over_parents(parent, folder=path.parent, shown=above, root=root, files=(*files, path))
    values = {key: child for key, child in (parent.mapping or {}).items() if key not in _NOT_INHERITED}
    return merged(replace(parent, value=values), tree), [*findings, *more]


def _bad(node: Node, message: str, *, help: str | None = None) -> Finding:
    return problem("SD009", message, replace(node.span, path="extends"), help=help)


def _refusal(node: Node, path: Path, *, root: Path, files: tuple[Path, ...]) -> Finding | None:
    """The finding for a parent that may not be read at all."""
    written = quoted(str(node.value))
    if path in files:
        circle = files[files.index(path) :]
        if len(circle) == 1:
            return _bad(node, "`extends` names its own file")
        chain = " → ".join(quoted(each.name) for each in (*circle, path))
        return _bad(node, f"`extends` goes round in a circle: {chain}")
    if len(files) > MAX_PARENTS:
        return _bad(node, f"`extends` leads through more than {MAX_PARENTS} parents")
    if not path.is_relative_to(root):
        message = f"the parent {written} is outside of this profile's repository or folder"
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
    """The parent's tree. What is not a profile is reported at `extends`; its text is never quoted."""
    written = quoted(str(node.value))
    try:
        if path.exists() and not path.is_file():
            return None, [_bad(node, f"the parent {written} is not a file")]
        data = read(str(path))
    except OSError as error:
        return None, [_bad(node, f"cannot read the parent {written}: {system_reason(error)}")]
    tree, findings = parse(data, file=shown)
    if tree is None:
        # its own problem may quote a file that nobody meant to show
        message = (
            f"the parent {written} is not a profile: it cannot be read from line {findings[-1].span.line} on"
        )
        return None, [_bad(node, message)]
    if not _is_profile(tree):
        message = f"the parent {written} is not a profile: it has neither `target` nor `extends`"
        return None, [_bad(node, message)]
    related = (Related(node.span, "extended here"),)
    return tree, [replace(finding, related=(*finding.related, *related)) for finding in findings]


def _is_profile(tree: Node) -> bool:
    """A base may hold no target; but then nothing else than keys of a profile."""
    keys = set(tree.mapping or {})
    return bool(keys & {"target", "extends"}) or (bool(keys) and keys <= set(TOP))


Maker = Callable[[Iterable[str]], tuple[Profile | None, list[Finding]]]
"""Takes the settings of `--set`; gives what `examine` gives."""

_MAKERS: dict[str, Maker] = {}


def made_by(name: str, maker: Maker) -> None:
    """From now on the profile of that name comes from `maker`: it is not a file, but a command line in memory."""
    _MAKERS[name] = maker


def load_profile(
    path: str | os.PathLike[str],
    *,
    settings: Iterable[str] = (),
    alternative: str | None = None,
) -> Profile:
    """The profile in a file (`-`: stdin), with `--set` values over it, and with a chosen alternative.

    Raises ProfileError with every problem of the file, UsageError for a malformed setting.
    """
    profile, findings = examine(path, settings=settings)
    findings = [finding for finding in findings if finding.severity is Severity.ERROR]
    if profile is None or findings:
        count = f"{len(findings)} problem{'s' if len(findings) > 1 else ''}"
        hint = None
        if [(finding.message, finding.help) for finding in findings] == [(_ABSENT, None)]:
            hint = "a profile to start from is `configs/demo.yaml` in specserve's repository"
        raise ProfileError(
            f"`{os.fspath(path)}` is not a valid profile: {count}", findings=tuple(findings), hint=hint
        )
    return with_alternative(profile, alternative)


def examine(
    path: str | os.PathLike[str], *, settings: Iterable[str] = ()
) -> tuple[Profile | None, list[Finding]]:
    """The profile, None where it cannot be used, and every problem of the file, in file order.

    A command line may be a profile and have problems all the same. Raises UsageError for a malformed setting.
    """
    profile, findings = examine_partial(path, settings=settings)
    return (None if findings and os.fspath(path) not in _MAKERS else profile), findings


def examine_partial(
    path: str | os.PathLike[str], *, settings: Iterable[str] = ()
) -> tuple[Profile | None, list[Finding]]:
    """The profile as far as it can be read, None if it cannot be read at all, and every problem in file order.

    Using a bad value of the profile raises UnreadableValue. Raises UsageError for a malformed setting.
    """
    file = os.fspath(path)
    if file in _MAKERS:
        return _MAKERS[file](settings)
    try:
        data = read(file)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        missing = isinstance(error, FileNotFoundError)
        near = near_file(file) if missing else None
        absent = _ABSENT if Path(file).suffix else "no such file or folder"
        message = absent if missing else f"cannot read the file: {system_reason(error)}"
        help = f"did you mean `{near}`?" if near else None
        return None, [problem("SD002", message, Span(file), help=help)]
    tree, findings = parse(data, file=file)
    if tree is None:
        return None, findings
    # a symbolic link's own folder counts, as for the shell
    folder = Path.cwd() if file == "-" else Path(os.path.abspath(file)).parent  # noqa: PTH100
    tree, more = with_parents(tree, file=file, folder=folder)
    complete = all(finding.code != "SD009" for finding in more)
    tree = apply(tree, settings)
    profile, found = read_profile(tree, file=file, whole=complete, problems=[*findings, *more])
    return profile, ordered(found)


def near_file(file: str) -> str | None:
    """The YAML file in the same folder whose name is nearest to that of a file that is not there."""
    place = Path(file)
    try:
        names = [item.name for item in place.parent.iterdir() if item.suffix in (".yaml", ".yml")]
    except OSError:
        return None
    found = get_close_matches(place.name, sorted(names), n=1, cutoff=0.7)
    return str(place.with_name(found[0])) if found else None


def with_alternative(profile: Profile, name: str | None) -> Profile:
    """The profile with one of its alternatives as `speculation`; `baseline`: with none. Raises ProfileError."""
    if name == BASELINE:
        return replace(profile, speculation=None)
    if name is None:
        return profile
    if name not in profile.alternatives:
        known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
        raise ProfileError(
            f"`{profile.file}` has no alternative {quoted(name)}: it has {known}",
            hint="`--alternative baseline` is the profile without speculation",
        )
    return replace(
        profile,
        speculation=profile.alternatives[name],
        spans=_chosen(profile.spans, name),
        key_spans=_chosen(profile.key_spans, name),
    )


def _chosen(spans: Mapping[str, Span], name: str) -> Mapping[str, Span]:
    """The places with those of one alternative as those of `speculation`."""
    prefix = f"alternatives.{name}"
    moved = {
        "speculation" + path.removeprefix(prefix): span
        for path, span in spans.items()
        if path == prefix or path.startswith(prefix + ".")
    }
    kept = {path: span for path, span in spans.items() if not path.startswith("speculation")}
    return {**kept, **moved}
