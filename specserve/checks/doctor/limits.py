"""Lines about what the system grants: shared memory, open files, memory. Changes no limit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from specserve.checks.doctor.line import Line
from specserve.checks.figures import gib
from specserve.facts.accelerators import Machine

SHM = Path("/dev/shm")  # noqa: S108  # looked at, not written to
_SMALL_SHM = 2**30
"""As SD404: containers have 64 MiB; the message queues of two ranks alone may take 640 MiB.

One of 10 x 16 MiB, and one of 10 x 24 MiB a rank. (vllm/v1/executor/multiproc_executor.py, shm_broadcast.py, 0.32)
"""
_FULL_SHM = 32 * 2**20
_RAISED_FILES = 65535
"""vLLM raises the soft limit to this, where the hard one allows it. (vllm/utils/system_utils.py, set_ulimit)"""
_FEW_FILES = 4096
_TOO_FEW_FILES = 256
_LITTLE_MEMORY = 2 * 2**30


def shared_memory_lines(folder: Path = SHM, *, gpus: int) -> Iterator[Line]:
    """Whether several ranks can talk through it. `gpus`: how many a launch could use."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        text = f"cannot be used: {error.strerror}"
        yield Line(str(folder), "bad", text, f"mount it: `mount -t tmpfs tmpfs {folder}`")
        return
    text = f"{gib(usage.free)} of {gib(usage.total)} free"
    if usage.free < _FULL_SHM:
        fix = f"remove what nobody uses (`ls -l {folder}`), or give a container more: `docker run --shm-size 8g`"
        yield Line(str(folder), "bad", f"{text}: vLLM would end with a bus error", fix)
    elif usage.total < _SMALL_SHM:
        fix = "give the container more: `docker run --shm-size 8g`, or `--ipc host`"
        yield Line(str(folder), "bad" if gpus > 1 else "note", f"{text}: too little for several ranks", fix)
    else:
        yield Line(str(folder), "ok", text)


def open_files_line(*, soft: int, hard: int) -> Line:
    """How many files vLLM may have open: each request holds one. A limit of -1 is none."""
    if hard == -1 or hard >= _RAISED_FILES or soft == -1:
        allowed = -1 if soft == -1 else max(soft, _RAISED_FILES)
        raised = f"{soft}, and vLLM raises it to {_RAISED_FILES}"
        return Line(
            "open files", "ok", raised if soft != allowed else "no limit" if soft == -1 else f"{soft}"
        )
    if soft >= _FEW_FILES:
        return Line("open files", "ok", f"{soft}")
    text = f"{soft}, at most {hard}: vLLM cannot raise it to {_RAISED_FILES}"
    fix = (
        f"`ulimit -n {hard}`"
        if hard >= _FEW_FILES
        else "LimitNOFILE=, limits.conf, or `docker run --ulimit nofile`"
    )
    if soft < _TOO_FEW_FILES:
        return Line("open files", "bad", f"{text}, and its start needs more", fix)
    return Line("open files", "note", f"{text}, and every request holds one", fix)


def memory_line(machine: Machine) -> Line:
    """The memory that the CPU engine works in."""
    total = machine.accelerator.total_bytes
    free = machine.least_free_bytes(ranks=1) or 0
    text = f"{gib(free)} of {gib(total)} free"
    if free < _LITTLE_MEMORY:
        return Line("memory", "note", text, "end what nobody needs, or raise the container's limit")
    return Line("memory", "ok", text)
