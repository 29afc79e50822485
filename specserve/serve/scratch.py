"""A temporary folder of its own for each server: whatever it leaves there goes with the folder. Starts nothing."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from specserve.serve.identity import is_alive, ticks

_MADE = re.compile(r"specserve-(\d{1,10}-\d{1,20}-)?[a-z0-9_]{8}")
_LONGEST = 70
"""Of the folder's path: vLLM puts sockets with names of 36 characters into it, and a socket's path has 107."""


_OWNED = re.compile(r"specserve-(?P<pid>\d{1,10})-(?P<ticks>\d{1,20})-\w+")


def make_scratch(env: Mapping[str, str], *, outlives_us: bool = False) -> Path | None:
    """A new folder in the temporary one; None where there is no room for it, and vLLM uses the common one.

    Folders whose command was killed are removed on the way; those that outlive theirs have another to see to them.
    """
    base = env.get("TMPDIR") or tempfile.gettempdir()
    _sweep(Path(base))
    owner = f"{os.getpid()}-{ticks(os.getpid())}-"
    with contextlib.suppress(OSError):
        made = Path(tempfile.mkdtemp(prefix="specserve-" if outlives_us else f"specserve-{owner}", dir=base))
        if len(str(made)) <= _LONGEST:
            return made
        made.rmdir()
    return None


def _sweep(base: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            owned = _OWNED.fullmatch(entry.name)
            if owned is None or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            if not is_alive(int(owned["pid"]), since=int(owned["ticks"])):
                remove_scratch(Path(entry.path))


def within(env: Mapping[str, str], scratch: Path | None) -> dict[str, str]:
    """The environment of a server that uses the folder. Caches that outlive a server stay where they were."""
    if scratch is None:
        return dict(env)
    cache = Path(env.get("TMPDIR") or tempfile.gettempdir()) / f"torchinductor_{_user()}"
    # at the end: setproctitle names no process where the first variable was changed (vLLM changes this one)
    return {
        **env,
        "TMPDIR": str(scratch),
        "TORCHINDUCTOR_CACHE_DIR": env.get("TORCHINDUCTOR_CACHE_DIR", str(cache)),
    }


def _user() -> str:
    """As torch writes it into a path (torch/_inductor/runtime/cache_dir_utils.py, 2.13)."""
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):
        return str(os.getuid())


def remove_scratch(scratch: Path | None) -> None:
    """The folder and all in it; safe where it is gone."""
    if scratch is not None and _MADE.fullmatch(scratch.name) and _is_ours(scratch):
        shutil.rmtree(scratch, ignore_errors=True)


def _is_ours(scratch: Path) -> bool:
    """Whether it is as `mkdtemp` makes them: the path stands in a file, and a folder of the user's is no scratch."""
    with contextlib.suppress(OSError):
        status = scratch.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        return private and status.st_uid == os.geteuid()
    return False


@contextlib.contextmanager
def scratch_env(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a server whose temporary folder ends with this block."""
    scratch = make_scratch(env)
    try:
        yield within(env, scratch)
    finally:
        remove_scratch(scratch)
