"""Where profiles are: files, folders and stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from specserve.errors import UsageError
from specserve.files import open_regular
from specserve.profile.source import MAX_BYTES, keep, read


def find_profiles(
    paths: list[str], *, pick: bool, stdin_filename: str | None, warn: Callable[[str], None]
) -> list[str]:
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
                more = f" and {len(others) - 5} more YAML files" if len(others) > 5 else ""
                text = f"`{'`, `'.join(others[:5])}`{more}"
                warn(f"not judged, without a top-level `target` or `extends`: {text}")
        for file in files:
            found.setdefault(os.path.abspath(file) if file != "-" else file, file)  # noqa: PTH100
    if not found and not pick:
        hint = "a profile is a *.yaml or *.yml with a top-level `target` or `extends`"
        raise UsageError(f"there is no profile in `{'`, `'.join(paths)}`", hint=hint)
    if stdin_filename and "-" in found:
        keep(stdin_filename, read("-"))
        found["-"] = stdin_filename
    return list(found.values())


def _below(folder: str) -> tuple[list[str], list[str]]:
    """The profiles in a folder and those in it, and the other YAML files; no bases (`_…`)."""
    meant: list[str] = []
    others: list[str] = []
    for place, folders, names in os.walk(folder, onerror=lambda one: meant.append(one.filename)):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            file = str(Path(place, name))
            if name.endswith((".yaml", ".yml")) and name[0] not in "_." and Path(file).is_file():
                (meant if _is_profile(file) else others).append(file)
    return sorted(meant, key=lambda name: Path(name).parts), sorted(others)


def _is_profile(file: str) -> bool:
    """By its lines alone, so that invalid YAML is not passed over; what cannot be read is told."""
    key = rb"""(?m)^[{ ]*["']?(target|extends|speculation)["']?[ \t]*:"""
    try:
        with open_regular(Path(file)) as stream:
            return bool(re.search(key, stream.read(MAX_BYTES)))
    except OSError:
        return True
