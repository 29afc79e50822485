"""Which files are profiles: named ones, those in folders, those that a glob matches, and stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from specserve.errors import UsageError
from specserve.profile.codes import quoted
from specserve.profile.source import MAX_BYTES, keep, parse, read

_MAY_BE_PROFILE = re.compile(rb"""^['"{ ]*(target|extends)['"]?[ \t]*:""", re.M)
_IS_PROFILE = re.compile(rb"""^(target|extends)[ \t]*:""", re.M)
_GLOB = re.compile(r"[*?\[]")


def find_profiles(
    paths: list[str], *, pick: bool, stdin_filename: str | None, warn: Callable[[str], None]
) -> list[str]:
    """The profiles that these paths name, each once. Raises UsageError if there are none, unless `pick` may leave none.

    `warn` is called with a path that names none, if others do.
    """
    found: dict[str, str] = {}
    for path in paths:
        files = list(profiles(path, pick=pick))
        if not files and not pick and len(paths) > 1:
            warn(path)
        for file in files:
            found.setdefault(os.path.abspath(file) if file != "-" else file, file)  # noqa: PTH100 - may not exist
    if not found and not pick:
        raise UsageError(
            f"there is no profile in {', '.join(f'`{path}`' for path in paths)}",
            hint="a profile is a *.yaml or *.yml with a top-level `target` or `extends`; `_….yaml` is a base",
        )
    if stdin_filename and "-" in found:
        keep(stdin_filename, read("-"))
        found["-"] = stdin_filename
    return list(found.values())


def profiles(path: str, *, pick: bool = False) -> Iterator[str]:
    """A file as it is; of a folder, or of a glob that the shell left alone, the profiles, sorted.

    With `pick`, a named file counts only if it looks like a profile. A folder that cannot be read is
    yielded itself, so that it becomes a finding.
    """
    if path == "-":
        yield path
    elif Path(path).is_dir():
        yield from _below(path)
    elif _GLOB.search(path) and not Path(path).exists():
        yield from _matching(path)
    elif not pick or _is_meant(path):
        yield path


def _below(folder: str) -> Iterator[str]:
    """The profiles in a folder and the folders in it; hidden ones and links to folders are not entered."""
    unreadable: list[str] = []
    found: list[str] = []

    def note(error: OSError) -> None:
        unreadable.append(str(error.filename))

    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [str(Path(place, name)) for name in files if name.endswith((".yaml", ".yml"))]
    meant = [file for file in found if _is_meant(file)]
    yield from sorted([*meant, *unreadable], key=lambda name: Path(name).parts)


def _matching(pattern: str) -> Iterator[str]:
    """The profiles that a glob matches; `**` is any number of folders, none of them hidden or a link."""
    start, shown = Path(Path(pattern).anchor or "."), set(Path(pattern).parts)
    try:
        found = sorted(
            start.glob(str(Path(pattern).relative_to(start) if pattern.startswith("/") else pattern))
        )
    except ValueError as error:
        raise UsageError(f"{quoted(pattern)} is no glob: {error}".rstrip(".")) from error
    for file in found:
        hidden = any(part.startswith(".") and part != ".." and part not in shown for part in file.parts)
        if not hidden and _is_meant(str(file)):
            yield str(file)


def _is_meant(file: str) -> bool:
    """Whether a file in a folder is to be judged by itself: a profile, and no base (`_…`)."""
    base = os.path.basename(file)  # noqa: PTH119 - Path is slow for a thousand of them
    return not base.startswith(("_", ".")) and Path(file).is_file() and _is_profile(file)


def _is_profile(file: str) -> bool:
    """Whether it has a top-level `target` or `extends`; a file that cannot be read becomes a finding."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return True
    if _IS_PROFILE.search(data):
        return True  # by its line alone, so that invalid YAML is not passed over
    if not _MAY_BE_PROFILE.search(data):
        return False
    tree = parse(data, file=file)[0]
    return tree is not None and bool({"target", "extends"} & set(tree.mapping or {}))
