"""Lines about the folders that a launch writes to: is there room, may they be written. Writes nothing."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specserve.checks.doctor.line import Line, State
from specserve.checks.figures import gib
from specserve.models.hubcache import hub_cache, is_offline

_FULL_BYTES = 64 * 2**20
_LITTLE_BYTES = 10 * 2**30
_LONGEST_SOCKET = 107
"""Of a socket's path, in bytes. (unix(7): 108 with its end)"""
_SOCKET_NAME = len("/") + 36
"""What vLLM adds to the folder: a UUID. (vllm/utils/network_utils.py, get_open_zmq_ipc_path)"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder as it is, or the nearest one above that exists."""

    path: Path
    free_bytes: int
    trouble: str | None
    """Why nothing can be written into it."""


def look(folder: Path) -> Place:
    """What can be said of a folder without writing into it. Raises OSError where nothing can."""
    there = next(part for part in (folder, *folder.parents) if os.path.exists(part))  # noqa: PTH110 - Path's form raises where it may not look
    if not there.is_dir():
        return Place(folder, 0, f"{there} is not a folder")
    free = shutil.disk_usage(there).free
    status = os.statvfs(there)
    if not os.access(there, os.W_OK | os.X_OK):
        return Place(folder, free, "cannot be written")
    if free < _FULL_BYTES:
        return Place(folder, free, "the disk is full")
    if status.f_files and not status.f_favail:
        return Place(folder, free, "the disk has no inode left")
    return Place(folder, free, None)


def is_shared(folder: Path) -> bool:
    """Whether somebody else may exchange what lies in a folder; in one like /tmp (sticky) only its owner may."""
    try:
        status = folder.stat()
    except OSError:
        return False
    is_others = status.st_uid not in (0, os.geteuid())
    return is_others or bool(status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX)


def folder_lines(environ: Mapping[str, str], *, state: Path) -> Iterator[Line]:
    """The Hub's cache, vLLM's, the folder for temporary files, and that of specserve's logs and state."""
    yield _cache(look(hub_cache(environ)), is_needed=not is_offline(environ))
    yield from _vllm(Path(environ.get("VLLM_CACHE_ROOT") or _vllm_default(environ)).expanduser())
    yield from _temporary(environ)
    place = look(state)
    if place.trouble:
        text = f"{state}: {place.trouble}: no log and no state can be kept"
        yield Line("state", "bad", text, "make room there, or set SPECSERVE_STATE_DIR to another folder")
    elif is_shared(state):
        text = f"{state}: other users may rename what lies in it, and so hide the servers"
        yield Line(
            "state", "note", text, f"`chmod go-w {state}`, or set SPECSERVE_STATE_DIR to a folder of your own"
        )
    else:
        yield Line("state", "ok", str(state))


def _cache(place: Place, *, is_needed: bool) -> Line:
    text = f"{gib(place.free_bytes)} free for downloads in {place.path}"
    if place.trouble:
        state: State = "bad" if is_needed else "note"
        return Line(
            "cache",
            state,
            f"{place.path}: {place.trouble}",
            "set HF_HOME to a folder with room for the models",
        )
    if place.free_bytes < _LITTLE_BYTES:
        fix = "set HF_HOME to a larger disk, or remove models: `hf cache`"
        return Line("cache", "note", f"{text}; an 8B model in bf16 takes 15 GiB", fix)
    return Line("cache", "ok", text)


def _vllm_default(environ: Mapping[str, str]) -> str:
    """Source: vllm/envs.py 0.32, get_default_cache_root."""
    return str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "vllm")


def _vllm(folder: Path) -> Iterator[Line]:
    place = look(folder)
    if place.trouble:
        text = f"{folder}: {place.trouble}: vLLM keeps there what it compiles"
        yield Line("vLLM cache", "bad", text, "set VLLM_CACHE_ROOT to a folder that can be written")


def _temporary(environ: Mapping[str, str]) -> Iterator[Line]:
    try:
        folder = Path(environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    except FileNotFoundError:
        yield Line("temp folder", "bad", "none can be written", "set TMPDIR to a folder that can be written")
        return
    place = look(folder)
    if place.trouble:
        text = f"{folder}: {place.trouble}: vLLM's processes meet there"
        yield Line("temp folder", "bad", text, "set TMPDIR to a folder that can be written")
    elif len(os.fsencode(folder)) + _SOCKET_NAME > _LONGEST_SOCKET:
        text = f"{folder} is too long a path for vLLM's sockets"
        yield Line("temp folder", "bad", text, "set VLLM_RPC_BASE_PATH=/tmp")
