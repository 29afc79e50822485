"""All lines about this host, in the order of the screen. A reader that fails becomes a line of its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specserve.checks.doctor.installation import (
    Software,
    device_lines,
    engine_lines,
    processor_lines,
    read_driver,
    read_software,
)
from specserve.checks.doctor.leftovers import (
    Leftovers,
    Strays,
    find_leftovers,
    find_strays,
    leftover_lines,
    stray_lines,
)
from specserve.checks.doctor.limits import (
    Line,
    examined,
    folder_lines,
    hub_lines,
    memory_line,
    open_files_line,
    shared_memory_lines,
)


@dataclass(frozen=True, slots=True)
class Remains:
    """What killed servers left behind, as far as it could be found."""

    files: Leftovers
    processes: Strays


def host_lines(
    *, state: Path, ours: Collection[int], environ: Mapping[str, str] = os.environ
) -> Iterator[Line]:
    """Software, devices, limits, folders and the Hub.

    `state`: where specserve keeps state and logs. `ours`: processes of specserve's servers.
    """
    software, driver = cache(read_software), cache(read_driver)
    limits = dict(zip(("soft", "hard"), resource.getrlimit(resource.RLIMIT_NOFILE), strict=True))
    readers = {
        "vLLM": lambda: engine_lines(software()),
        "CPU": lambda: _cpu_lines(software()),
        "GPU": lambda: device_lines(driver(), software(), environ=environ, ours=ours),
        "memory": lambda: _memory_lines(software()),
        "/dev/shm": lambda: shared_memory_lines(is_cpu=software().is_cpu, gpus=len(driver().gpus)),  # noqa: S108
        "open files": lambda: [open_files_line(**limits)],
        "folders": lambda: folder_lines(environ, state=state),
        "Hub": lambda: hub_lines(environ),
    }
    for name, reader in readers.items():
        yield from examined(name, reader)


def _cpu_lines(software: Software) -> Iterator[Line]:
    if software.vllm is not None and software.is_cpu:
        from specserve.plan.host import this_host

        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        yield from processor_lines(this_host(), package=software.vllm.package, cpuinfo=text)


def _memory_lines(software: Software) -> Iterator[Line]:
    if software.is_cpu:
        from specserve.hardware.accelerators import this_cpu

        yield memory_line(this_cpu())


def remains(*, ours: Collection[int] | None) -> tuple[Remains, list[Line]]:
    """What killed servers left, and the lines about it. `ours` None: unknown, so no process is named."""
    files, processes = Leftovers(), Strays()

    def read_processes() -> Iterator[Line]:
        nonlocal processes
        processes = find_strays(ours) if ours is not None else Strays()
        yield from stray_lines(processes)

    def read_files() -> Iterator[Line]:
        nonlocal files
        files = find_leftovers()
        yield from leftover_lines(files)

    lines = [*examined("leftovers", read_processes), *examined("leftovers", read_files)]
    return Remains(files, processes), lines or [Line("leftovers", "ok", "nothing left of killed servers")]
