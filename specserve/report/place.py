"""Files as other programs name them: seen from the root of the repository. Knows no finding."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote


def is_file(name: str) -> bool:
    """Whether a span's file is one: `-` is stdin, `--set key` and `<command>` are the command line."""
    return not name.startswith(("-", "<"))


def from_root(name: str) -> str:
    """The path of a file seen from the root of its repository; absolute where it lies outside."""
    folder, base = os.path.split(os.path.abspath(name))  # noqa: PTH100 - a name that is no file yet will do
    place = Path(os.path.realpath(folder)) / base
    root = _root(os.environ.get("GITHUB_WORKSPACE"), Path.cwd())
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)


def uri(name: str) -> str:
    """The same as a percent-encoded URI reference; `file://` where it is absolute."""
    path = from_root(name)
    encoded = quote(os.fsencode(path))
    return f"file://{encoded}" if path.startswith("/") else encoded


@lru_cache
def _root(workspace: str | None, here: Path) -> Path:
    """The checkout that a CI job works in; else the repository around the working directory; else that one."""
    if workspace:
        place = Path(os.path.realpath(workspace))
        if here.is_relative_to(place):
            return place
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
