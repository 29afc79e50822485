"""Where profiles are, and their bytes: files, folders, stdin, what has no file yet."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from specserve.errors import UsageError
from specserve.files import open_regular, read_named

MAX_BYTES = 1_000_000  # far above any profile, far below what hurts
COMMAND = "<command>"
"""The file name of a raw vLLM command that stands in the place of a profile."""
_KEPT: dict[str, bytes] = {}
"""Text without a file of its own by the name its findings have: stdin, what has no file yet."""
_NEWEST: dict[str, bytes] = {}  # the file that was read last


def read(file: str, *, again: bool = False) -> bytes:
    """What was kept under a name; else a file, or stdin (`-`), which is kept.

    Of more than a profile may have, one byte more. `again`: what was read last will do. Raises
    OSError, and ValueError for a name that no file can have.
    """
    if file == "-" and file not in _KEPT:  # stdin can be read once; a profile may be loaded again
        _KEPT[file] = sys.stdin.buffer.read(MAX_BYTES + 1)
    if file in _KEPT:
        return _KEPT[file]
    if not again or file not in _NEWEST:
        data = read_named(file, MAX_BYTES + 1)
        _NEWEST.clear()
        _NEWEST[file] = data
    return _NEWEST[file]


def keep(file: str, data: bytes) -> None:
    """From now on this is what stands in the file of that name."""
    _KEPT[file] = data


def find_profiles(paths: list[str], *, pick: bool, warn: Callable[[str], None]) -> list[str]:
    """The profiles that these paths name, each once: a file as it is, of a folder the profiles.

    `pick`: a named file counts only if it looks like a profile. `warn` gets a sentence for the
    YAML files of a folder that are none. Raises UsageError if there is no profile without `pick`.
    """
    found: dict[str, str] = {}
    for path in paths:
        files = [path] if not pick or _is_profile(path) else []
        if path != "-" and Path(path).is_dir():
            files, others = _below(path)
            if others:
                text = "not judged, without a top-level `target` or `extends`"
                warn(f"{text}: `{'`, `'.join(others)}`")
        for file in files:
            found.setdefault(os.path.abspath(file) if file != "-" else file, file)  # noqa: PTH100
    if not found and not pick:
        hint = "a profile is a *.yaml or *.yml with a top-level `target` or `extends`"
        raise UsageError(f"there is no profile in `{'`, `'.join(paths)}`", hint=hint)
    return list(found.values())


def _below(folder: str) -> tuple[list[str], list[str]]:
    """The profiles in a folder and those in it, and the other YAML files; no bases (`_…`)."""
    meant: list[str] = []
    others: list[str] = []
    start = str(Path(folder))
    for place, folders, names in os.walk(start, onerror=lambda one: meant.append(one.filename)):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            file = os.path.join(place, name).removeprefix("./")  # noqa: PTH118 - of a thousand
            if name.endswith((".yaml", ".yml")) and name[0] not in "_." and os.path.isfile(file):  # noqa: PTH113
                (meant if _is_profile(file) else others).append(file)
    return sorted(meant, key=lambda name: Path(name).parts), sorted(others)


def _is_profile(file: str) -> bool:
    """By its lines alone, so that invalid YAML is not passed over; what cannot be read is told."""
    key = rb"""(?m)^[{ ]*["']?(target|extends|speculation)["']?[ \t]*:"""
    try:
        with open_regular(file) as stream:
            return bool(re.search(key, stream.read(MAX_BYTES)))
    except OSError:
        return True
