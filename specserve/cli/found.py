"""Which profiles a command line means: files, folders, globs. Judges nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from specserve.errors import UsageError
from specserve.profile.codes import quoted

_MAY_BE_PROFILE = re.compile(rb"""^['"{ ]*(target|extends)['"]?[ \t]*:""", re.M)
_IS_PROFILE = re.compile(rb"""^(target|extends)[ \t]*:""", re.M)
_GLOB = re.compile(r"[*?\[]")


def profiles(path: str, *, pick: bool = False) -> Iterator[str]:
    """A file as it is; of a folder, or of a glob that the shell left alone, the profiles, sorted.

    With `pick`, a named file counts only where it is a profile by its look. A folder that cannot be read is
    yielded itself, so that somebody trips over it.
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
    """Whether a file met on the way is to be judged by itself: a profile, and no base (`_…`)."""
    base = os.path.basename(file)  # noqa: PTH119 - Path is slow for a thousand of them
    return not base.startswith(("_", ".")) and Path(file).is_file() and _is_profile(file)


def _is_profile(file: str) -> bool:
    """Whether it has a top-level `target` or `extends`; a file that cannot be read is told by its finding."""
    from specserve.profile.load import looks_like_profile
    from specserve.profile.source import MAX_BYTES, parse

    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return True
    if _IS_PROFILE.search(data):
        return True  # told by its line, so that one that is no valid YAML is not passed over
    return bool(_MAY_BE_PROFILE.search(data)) and looks_like_profile(parse(data, file=file)[0])
