"""Lines about what the system grants: shared memory, open files, memory. Changes no limit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from specserve.checks.doctor.line import Line
from specserve.checks.figures import gib
from specserve.hardware.accelerators import Machine

SHM = Path("/dev/shm")  # noqa: S108  # looked at, not written to
_QUEUE = 10 * 24 * 2**20
"""The largest message queue of a launch with several processes, which is refused where it does not fit what is free.

(vllm/distributed/device_communicators/shm_broadcast.py, check_shm_free_space and MessageQueue, 0.32 and 0.33)
"""
_SMALL_SHM = 2**30
"""As SD404: NCCL shares it too."""
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
    fix = "of a container: `docker run --shm-size 8g`, or `--ipc host`"
    if usage.free < _QUEUE:
        several = is_cpu or gpus > 1
        whom = "vLLM" if several else "a launch on several GPUs"
        if usage.total >= _SMALL_SHM:
            fix = f"remove what nobody uses: `ls -l {folder}`"
        text += f": {whom} needs {gib(_QUEUE)}"
        yield Line(str(folder), "bad" if several else "note", text, fix)
    elif usage.total < _SMALL_SHM and gpus > 1:
        yield Line(str(folder), "note", f"{text}: NCCL may need more", fix)
    else:
        yield Line(str(folder), "ok", text)


def open_files_line(*, soft: int, hard: int) -> Line:
    """How many files vLLM may have open: each request holds one. A limit of -1 is none.

    No start was seen to fail for it, down to 128.
    """
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
    return Line("open files", "note", f"{text}, and every request holds one", fix)


def memory_line(machine: Machine) -> Line:
    """The memory that the CPU engine works in."""
    total = machine.accelerator.total_bytes
    free = machine.least_free_bytes(ranks=1) or 0
    text = f"{gib(free)} of {gib(total)} free"
    if free < _LITTLE_MEMORY:
        return Line("memory", "note", text, "end what nobody needs, or raise the container's limit")
    return Line("memory", "ok", text)
