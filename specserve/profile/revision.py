"""Profiles as they stood in a commit: `configs/a.yaml@HEAD~1`. Reads through git, and touches no working tree."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specserve.diagnostics import Span
from specserve.errors import FactError, UsageError
from specserve.profile.codes import quoted
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.texts import read_by

_TIMEOUT_S = 30
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")


def at_revision(name: str) -> tuple[str, str] | None:
    """File and revision of `FILE@REVISION`; None for a name that is a file itself, or has no `@`."""
    file, sign, revision = name.rpartition("@")
    if not sign or not file or not revision or Path(name).exists():
        return None
    return file, revision


def load_at(file: str, revision: str, *, settings: Iterable[str] = ()) -> Profile:
    """The profile of a file in a commit, its parents from the same commit; its places name the revision.

    Raises UsageError where there is no such revision or file in it, FactError where git does not run.
    """
    folder = Path(os.path.abspath(file)).parent  # noqa: PTH100 - a link's own folder counts
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    if revision.startswith("-") or not _is_commit(root, revision):
        raise UsageError(f"there is no revision {quoted(revision)} in the repository of `{file}`")
    reader = _Reader(root, revision)
    if not reader.has(file):
        raise UsageError(f"`{file}` is not in revision {quoted(revision)}")
    with read_by(reader):
        profile = load_profile(file, settings=settings)
    return replace(
        profile,
        file=f"{file}@{revision}",
        spans={path: _named(span, revision) for path, span in profile.spans.items()},
        key_spans={path: _named(span, revision) for path, span in profile.key_spans.items()},
    )


def _named(span: Span, revision: str) -> Span:
    """The place with the revision in its name; one on the command line stays."""
    return span if span.file.startswith("-") else replace(span, file=f"{span.file}@{revision}")


class _Reader:
    """Reads files of one commit as if they stood in the working tree."""

    def __init__(self, root: Path, revision: str) -> None:
        self._root = root
        self._revision = revision

    def __call__(self, file: str) -> bytes:
        if not self.has(file):
            raise FileNotFoundError(errno.ENOENT, "no such file in this revision", file)
        return _git(self._root, "cat-file", "blob", self._object(file))

    def has(self, file: str) -> bool:
        name = self._object(file)
        return bool(name) and _asked(self._root, "cat-file", "-e", name).returncode == 0

    def _object(self, file: str) -> str:
        folder, base = os.path.split(os.path.abspath(file))  # noqa: PTH100
        place = Path(os.path.realpath(folder)) / base
        if not place.is_relative_to(self._root):
            return ""
        return f"{self._revision}:{place.relative_to(self._root).as_posix()}"


def _is_commit(root: Path, revision: str) -> bool:
    return _asked(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").returncode == 0


def _git(folder: Path, *arguments: str) -> bytes:
    done = _asked(folder, *arguments)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise UsageError(f"git cannot read `{folder}`: {reason[0].removeprefix('fatal: ')}")
    return done.stdout


def _asked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """What git answers. Raises FactError where there is none, UsageError for a folder that is not there."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`")
    command = ["git", "-C", str(folder), *arguments]
    # inside of a hook git names its own folders, which are not to be taken for this one's
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S, env=env)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FactError(f"git does not run: {reason.lower()}", hint="`PROFILE@REVISION` needs git") from error
