"""A file to a Profile, or to all that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import ProfileError
from specserve.profile import overrides
from specserve.profile.extends import with_parents
from specserve.profile.problems import ordered, problem
from specserve.profile.schema import Profile
from specserve.profile.source import parse
from specserve.profile.texts import read
from specserve.profile.tree import Node
from specserve.profile.validate import read_profile

Maker = Callable[[Iterable[str]], tuple[Profile | None, list[Finding]]]
"""Takes the settings of `--set`; gives what `examine` gives."""

_MAKERS: dict[str, Maker] = {}


def made_by(name: str, maker: Maker) -> None:
    """From now on the profile of that name comes from `maker`: it is no file, but a command line in memory."""
    _MAKERS[name] = maker


def load_profile(path: str | os.PathLike[str], *, settings: Iterable[str] = ()) -> Profile:
    """The profile in a file (`-`: stdin), with `--set` values over it.

    Raises ProfileError with every problem of the file, UsageError for a malformed setting.
    """
    profile, findings = examine(path, settings=settings)
    findings = [finding for finding in findings if finding.severity is Severity.ERROR]
    if profile is None or findings:
        count = f"{len(findings)} problem{'s' if len(findings) > 1 else ''}"
        hint = None
        if [finding.code for finding in findings] == ["SD001"] and not findings[0].help:
            hint = "a profile to start from is `configs/demo.yaml` in specserve's repository"
        raise ProfileError(
            f"`{os.fspath(path)}` is not a valid profile: {count}", findings=tuple(findings), hint=hint
        )
    return profile


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
    except FileNotFoundError:
        near = near_file(file)
        help = f"did you mean `{near}`?" if near else None
        return None, [problem("SD001", "no such file", Span(file), help=help)]
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        return None, [problem("SD001", f"cannot read the file: {reason}", Span(file))]
    tree, findings = parse(data, file=file)
    if tree is None:
        return None, findings
    # a symbolic link's own folder counts, as for the shell
    folder = Path.cwd() if file == "-" else Path(os.path.abspath(file)).parent  # noqa: PTH100
    whole, more = with_parents(tree, file=file, folder=folder)
    complete = all(finding.code != "SD009" for finding in more)
    tree = overrides.apply(whole, settings)
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


def looks_like_profile(tree: Node | None) -> bool:
    """Whether a YAML file met in a folder is meant as a profile: a mapping with `target` or `extends`."""
    return tree is not None and bool({"target", "extends"} & set(tree.mapping or {}))


def with_alternative(profile: Profile, name: str | None, *, baseline: bool) -> Profile:
    """The profile with one of its alternatives as `speculation`, or with none. Raises ProfileError."""
    if baseline:
        return replace(profile, speculation=None)
    if name is None:
        return profile
    if name not in profile.alternatives:
        known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
        raise ProfileError(f"`{profile.file}` has no alternative `{name}`: it has {known}")
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
