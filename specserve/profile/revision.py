"""Profiles as they stood in a commit: `configs/a.yaml@HEAD~1`. Reads through git, and touches no working tree."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specserve.diagnostics import Span
from specserve.errors import FactError, UsageError, system_reason
from specserve.profile.codes import quoted
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import read_by

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

    Raises UsageError if there is no such revision or file in it, FactError if git does not run.
    """
    folder = Path(os.path.abspath(file)).parent  # noqa: PTH100 - a link's own folder counts
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    commit = f"{revision}^{{commit}}"
    if revision.startswith("-") or _run_git(root, "rev-parse", "--verify", "--quiet", commit).returncode:
        raise UsageError(f"there is no revision {quoted(revision)} in the repository of `{file}`")
    if not _is_in(root, revision, file):
        raise UsageError(f"`{file}` is not in revision {quoted(revision)}")
    with read_by(lambda name: _read(root, revision, name)):
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


def _read(root: Path, revision: str, file: str) -> bytes:
    """A file of a commit as if it stood in the working tree. Raises FileNotFoundError."""
    if not _is_in(root, revision, file):
        raise FileNotFoundError(errno.ENOENT, "no such file in this revision", file)
    return _git(root, "cat-file", "blob", _blob(root, revision, file))


def _is_in(root: Path, revision: str, file: str) -> bool:
    name = _blob(root, revision, file)
    return bool(name) and _run_git(root, "cat-file", "-e", name).returncode == 0


def _blob(root: Path, revision: str, file: str) -> str:
    """git's name of a file in a commit; empty for one outside of the repository."""
    folder, base = os.path.split(os.path.abspath(file))  # noqa: PTH100
    place = Path(os.path.realpath(folder)) / base
    return f"{revision}:{place.relative_to(root).as_posix()}" if place.is_relative_to(root) else ""


def _git(folder: Path, *arguments: str) -> bytes:
    done = _run_git(folder, *arguments)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise UsageError(f"git cannot read `{folder}`: {reason[0].removeprefix('fatal: ')}")
    return done.stdout


def _run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs git. Raises FactError if there is none, UsageError for a folder that is not there."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`")
    command = ["git", "-C", str(folder), *arguments]
    # inside of a hook git names its own folders, which are not to be taken for this one's
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S, env=env)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        hint = "`PROFILE@REVISION` needs git"
        raise FactError(f"git does not run: {system_reason(error)}", hint=hint) from error
