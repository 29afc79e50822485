"""A line of the doctor's screen; those about what the system grants, the folders of a launch, and the Hub."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from specserve.checks.rules.memory import gib
from specserve.checks.rules.site import QUEUE_BYTES, SMALL_SHM_BYTES
from specserve.hardware.accelerators import Machine
from specserve.models.hub import hub_cache, is_offline

State = Literal["ok", "note", "bad"]
"""bad: breaks a launch, or what it serves is wrong. note: worth acting on, and a launch goes all the same."""


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about this host, with its way out where it needs one."""

    name: str
    """What it is about, in a word or two; the same from version to version."""
    state: State
    text: str
    fix: str | None = None
    """What to do about it; None where there is nothing to do."""


Reader = Callable[[], Iterable[Line]]


def examined(name: str, reader: Reader) -> list[Line]:
    """The lines of a reader. One that fails becomes a line that says so: the others are wanted all the same."""
    try:
        return list(reader())
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        fix = "report it as a bug, unless the host is at fault"
        return [Line(name, "note", f"could not be examined: {why}", fix)]


SHM = Path("/dev/shm")  # noqa: S108  # looked at, not written to
_RAISED_FILES = 65535
"""vLLM raises the soft limit to this, where the hard one allows it. (vllm/utils/system_utils.py, set_ulimit)"""
_FEW_FILES = 4096
_LITTLE_MEMORY = 2 * 2**30


def shared_memory_lines(folder: Path = SHM, *, is_cpu: bool, gpus: int) -> Iterator[Line]:
    """Whether the processes of a launch can talk through it.

    The CPU engine always has several, one on GPUs where it takes more than one of the `gpus`.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        text = f"cannot be used: {error.strerror}"
        yield Line(str(folder), "bad", text, f"mount it: `mount -t tmpfs tmpfs {folder}`")
        return
    text = f"{gib(usage.free)} of {gib(usage.total)} free"
    fix = "in a container: `docker run --shm-size 8g`, or `--ipc host`"
    if usage.free < QUEUE_BYTES:
        several = is_cpu or gpus > 1
        whom = "vLLM" if several else "a launch on several GPUs"
        if usage.total >= SMALL_SHM_BYTES:
            fix = f"remove files that no process uses: `ls -l {folder}`"
        text += f": {whom} needs {gib(QUEUE_BYTES)}"
        yield Line(str(folder), "bad" if several else "note", text, fix)
    elif usage.total < SMALL_SHM_BYTES and gpus > 1:
        yield Line(str(folder), "note", f"{text}: NCCL may need more", fix)
    else:
        yield Line(str(folder), "ok", text)


def open_files_line(*, soft: int, hard: int) -> Line:
    """How many files vLLM may have open: each request holds one. A limit of -1 is none.

    No start was seen to fail for it, down to 128.
    """
    text, can_raise = "no limit" if soft == -1 else f"{soft}", hard == -1 or hard >= _RAISED_FILES
    if can_raise and -1 < soft < _RAISED_FILES:
        text += f", and vLLM raises it to {_RAISED_FILES}"
    if can_raise or soft == -1 or soft >= _FEW_FILES:
        return Line("open files", "ok", text)
    text += f", at most {hard}: vLLM cannot raise it to {_RAISED_FILES}, and every request needs one"
    fix = "LimitNOFILE=, limits.conf, or `docker run --ulimit nofile`"
    return Line("open files", "note", text, f"`ulimit -n {hard}`" if hard >= _FEW_FILES else fix)


def memory_line(machine: Machine) -> Line:
    """The memory that the CPU engine works in."""
    total = machine.accelerator.total_bytes
    free = machine.least_free_bytes(ranks=1) or 0
    text = f"{gib(free)} of {gib(total)} free"
    if free < _LITTLE_MEMORY:
        return Line("memory", "note", text, "end what is not needed, or raise the container's limit")
    return Line("memory", "ok", text)


_FULL_BYTES = 64 * 2**20
_LITTLE_BYTES = 10 * 2**30
_LONGEST_SOCKET = 107
"""Of a socket's path, in bytes. (unix(7): 108 with its end)"""
_SOCKET_NAME = len("/") + 36
"""What vLLM adds to the folder: a UUID. (vllm/utils/network_utils.py, get_open_zmq_ipc_path)"""


def look(folder: Path) -> tuple[int, str | None]:
    """The free bytes of a folder, and why nothing can be written into it; nothing is written. Raises OSError."""
    there = next(part for part in (folder, *folder.parents) if os.path.exists(part))  # noqa: PTH110 - Path's form raises where it may not look
    if not there.is_dir():
        return 0, f"{there} is not a folder"
    free, status, why = shutil.disk_usage(there).free, os.statvfs(there), None
    if not os.access(there, os.W_OK | os.X_OK):
        why = "cannot be written"
    elif free < _FULL_BYTES:
        why = "the disk is full"
    elif status.f_files and not status.f_favail:
        why = "the disk has no inode left"
    return free, why


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
    yield _cache(hub_cache(environ), is_needed=not is_offline(environ))
    # vllm/envs.py 0.32, get_default_cache_root
    default = Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "vllm"
    folder = Path(environ.get("VLLM_CACHE_ROOT") or default).expanduser()
    if trouble := look(folder)[1]:
        text = f"{folder}: {trouble}: vLLM stores compiled code there"
        yield Line("vLLM cache", "bad", text, "set VLLM_CACHE_ROOT to a folder that can be written")
    yield from _temporary(environ)
    if trouble := look(state)[1]:
        text = f"{state}: {trouble}: no log and no state can be kept"
        yield Line("state", "bad", text, "make room there, or set SPECSERVE_STATE_DIR to another folder")
    elif is_shared(state):
        text = f"{state}: other users can rename its files, and so hide the servers"
        fix = f"`chmod go-w {state}`, or set SPECSERVE_STATE_DIR to a folder of your own"
        yield Line("state", "note", text, fix)
    else:
        yield Line("state", "ok", str(state))


def _cache(folder: Path, *, is_needed: bool) -> Line:
    free, trouble = look(folder)
    text = f"{gib(free)} free for downloads in {folder}"
    if trouble:
        fix = "set HF_HOME to a folder with room for the models"
        return Line("cache", "bad" if is_needed else "note", f"{folder}: {trouble}", fix)
    if free < _LITTLE_BYTES:
        fix = "set HF_HOME to a larger disk, or remove models: `hf cache`"
        return Line("cache", "note", f"{text}; an 8B model in bf16 takes 15 GiB", fix)
    return Line("cache", "ok", text)


def _temporary(environ: Mapping[str, str]) -> Iterator[Line]:
    fix = "set TMPDIR to a folder that can be written"
    try:
        folder = Path(environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir())
    except FileNotFoundError:
        yield Line("temp folder", "bad", "there is none that can be written to", fix)
        return
    if trouble := look(folder)[1]:
        yield Line("temp folder", "bad", f"{folder}: {trouble}: vLLM's processes communicate through it", fix)
    elif len(os.fsencode(folder)) + _SOCKET_NAME > _LONGEST_SOCKET:
        text = f"{folder} is too long a path for vLLM's sockets"
        yield Line("temp folder", "bad", text, "set VLLM_RPC_BASE_PATH=/tmp")


def hub_lines(environ: Mapping[str, str]) -> Iterator[Line]:
    """By the environment's variables, as huggingface_hub reads them. (utils/_auth.py, get_token, 2.4)"""
    source = _source(environ)
    if line := _token(environ, source):
        yield line
    if address := environ.get("HF_ENDPOINT"):
        yield _endpoint(address, has_token=source is not None)
    if is_offline(environ):
        names = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environ.get(name)]
        text = f"is not asked ({', '.join(names)}): models must be in the cache, or in a folder"
        yield Line("Hub", "ok", text)


def _token(environ: Mapping[str, str], source: str | None) -> Line | None:
    file = token_file(environ)
    if environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in {"1", "ON", "YES", "TRUE"}:
        text = "none is sent: HF_HUB_DISABLE_IMPLICIT_TOKEN is set"
        return Line("Hub token", "note", text, "unset it for gated models")
    if source is None:
        text = "none: gated models (Llama, Gemma) cannot be downloaded"
        login = "`hf auth login`, or set HF_TOKEN"
        return None if is_offline(environ) else Line("Hub token", "note", text, login)
    if source != "file":
        return Line("Hub token", "ok", f"present, from {source}")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        text = f"in {file}, which others may read (mode {mode:o})"
        return Line("Hub token", "note", text, f"`chmod 600 {file}`")
    return Line("Hub token", "ok", f"present, in {file}")


def token_file(environ: Mapping[str, str]) -> Path:
    """Where `hf auth login` keeps it. (huggingface_hub/constants.py, HF_TOKEN_PATH)"""
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = environ.get("HF_TOKEN_PATH") or f"{home}/token"
    return Path(os.path.expandvars(os.path.expanduser(path)))  # noqa: PTH111 - Path's form raises without a home


def _source(environ: Mapping[str, str]) -> str | None:
    """The variable, `file`, or None where there is no token; an empty one is none."""
    if environ.get("HF_OIDC_RESOURCE"):
        return "HF_OIDC_RESOURCE"
    name = next(filter(environ.get, ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), None)
    if name and environ[name].strip():
        return name
    with suppress(OSError):
        return "file" if token_file(environ).read_bytes().strip() else None
    return None


def _endpoint(text: str, *, has_token: bool) -> Line:
    shown = endpoint(text)
    host = urlsplit(shown or "").hostname or ""
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    if shown is None:
        fix = "write it like https://huggingface.co, or unset it"
        return Line("Hub", "note", "HF_ENDPOINT is not an address", fix)
    if has_token and shown.startswith("http://") and not is_loopback:
        return Line("Hub", "note", f"HF_ENDPOINT={shown}: the token goes there unencrypted", "use https://")
    return Line("Hub", "ok", f"HF_ENDPOINT={shown}")


def endpoint(text: str) -> str | None:
    """An address without user, password, query and fragment; None where it is none."""
    with suppress(ValueError):
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
        if parts.scheme in ("http", "https") and host:
            address = f"[{host}]" if ":" in host else host
            return f"{parts.scheme}://{address}{f':{port}' if port is not None else ''}{parts.path}"
    return None
