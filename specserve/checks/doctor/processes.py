"""Processes of vLLM on this host, read from /proc: which run, which lost the server they belong to. Ends none."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path, PurePath

from specserve.checks.doctor.line import Line

PROC = Path("/proc")
_TITLE = re.compile(r"VLLM::\w+")
"""What vLLM calls its processes, where setproctitle is installed. (vllm/utils/system_utils.py, set_process_title)"""
_MODULE = re.compile(r"vllm\.(entrypoints|v1)\.")
_CHILD = re.compile(r"\bmultiprocessing\.(spawn|forkserver)\b")
_LOADED = re.compile(r"/vllm/\w+\.abi3\.so\b")
_OURS = re.compile(r"/specserve/(serve|engine|cli)/.*\.py$")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as much as is needed."""

    pid: int
    parent: int
    group: int
    session: int
    argv: tuple[str, ...]
    state: str = "S"

    @property
    def command(self) -> str:
        """Its words up to the first option: a key may follow."""
        options = takewhile(lambda word: not word.startswith("--") and word != "-c", self.argv)
        return " ".join(options)

    def __str__(self) -> str:
        command = self.command
        return f"`{command if len(command) <= _LONGEST else command[:_LONGEST] + '…'}` (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Strays:
    """Processes of vLLM that belong to no server of specserve."""

    orphans: tuple[Process, ...] = ()
    """Engines and workers whose server is gone."""
    others: tuple[Process, ...] = ()
    """Servers that somebody else started, and engines of other programs."""


def find_strays(ours: Collection[int], *, proc: Path = PROC, user: int | None = None) -> Strays:
    """What runs under this user beside our servers. `ours`: pids of those, known from their state."""
    every = {process.pid: process for process in read_processes(proc)}
    user = os.geteuid() if user is None else user
    found = [
        process
        for process in every.values()
        if process.pid not in ours
        and process.state not in ("Z", "X")
        and _user(proc / str(process.pid)) == user
        and is_vllm(process, proc=proc)
        and not _is_of_specserve(process, every, ours)
    ]
    pids = {process.pid for process in found}
    orphans = [process for process in found if _is_orphan(process, every, pids)]
    roots = [process for process in found if process not in orphans and process.parent not in pids]
    return Strays(tuple(orphans), tuple(roots))


def read_processes(proc: Path = PROC) -> Iterator[Process]:
    """Every process; one that ends meanwhile is left out."""
    for entry in sorted(proc.iterdir(), key=lambda entry: entry.name):
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_bytes()
                state, parent, group, session = stat[stat.rindex(b")") + 2 :].split()[:4]
                words = (entry / "cmdline").read_bytes().rstrip(b"\0 ").split(b"\0")
                argv = tuple(word.decode(errors="replace") for word in words)
                yield Process(int(entry.name), int(parent), int(group), int(session), argv, state.decode())


def is_vllm(process: Process, *, proc: Path = PROC) -> bool:
    """Whether it is a server, an engine or a worker of vLLM; a program that merely imports vLLM is none."""
    if not any(process.argv):  # a thread of the kernel, a zombie
        return False
    if _TITLE.match(process.argv[0]):
        return True
    if _is_server(process):
        return True
    return _is_child(process) and _has_loaded_vllm(proc / str(process.pid))


def _is_server(process: Process) -> bool:
    """`vllm serve …`, `python …/vllm serve …`, `python -m vllm.entrypoints.…`."""
    argv = process.argv
    for at, word in enumerate(argv[:4]):
        if word == "-m":
            return len(argv) > at + 1 and _MODULE.match(argv[at + 1]) is not None
        if PurePath(word).name == "vllm" and argv[at + 1 : at + 2] == ("serve",):
            return True
    return False


def _is_child(process: Process) -> bool:
    return any(_CHILD.search(word) for word in process.argv)


def _has_loaded_vllm(folder: Path) -> bool:
    with suppress(OSError):
        return _LOADED.search((folder / "maps").read_text(encoding="utf-8", errors="replace")) is not None
    return False


def _is_of_specserve(process: Process, every: dict[int, Process], ours: Collection[int]) -> bool:
    """Whether one of its ancestors, or the first of its session, is a server of ours or specserve itself."""
    if process.session in ours or process.group in ours:
        return True
    seen = {process.pid}
    parent = every.get(process.parent)
    while parent is not None and parent.pid not in seen:
        if parent.pid in ours or is_specserve(parent.argv):
            return True
        seen.add(parent.pid)
        parent = every.get(parent.parent)
    return False


def is_specserve(argv: tuple[str, ...]) -> bool:
    """Whether a command line is specserve's own; a folder of that name in a path is not enough."""
    head = argv[:4]
    named = any(PurePath(word).name == "specserve" for word in head[:2])
    module = any(word == "-m" and after.partition(".")[0] == "specserve" for word, after in pairwise(head))
    return named or module or any(_OURS.search(word) for word in head)


def _is_orphan(process: Process, every: dict[int, Process], found: Collection[int]) -> bool:
    """An engine or worker that has lost its server: it was adopted, or belongs to an engine that was.

    Who led a group or session may be gone from a server that runs (a shell that was left), or be outside of this
    container; a parent of the same group or session is no foster parent.
    """
    if _is_server(process):
        return False
    parent = every.get(process.parent)
    if parent is None or (parent.pid == 1 and not _is_server(parent)):
        return True
    if parent.pid in found:
        return _is_orphan(parent, every, found)
    is_kin = parent.session == process.session or parent.group == process.group
    return not is_kin and (process.group not in every or process.session not in every)


def _user(folder: Path) -> int | None:
    with suppress(OSError):
        return folder.stat().st_uid
    return None


def stray_lines(strays: Strays) -> Iterator[Line]:
    """The orphans, which nobody wants, and the others, which somebody may."""
    if strays.orphans:
        names = ", ".join(map(str, strays.orphans[:3])) + (", …" if len(strays.orphans) > 3 else "")
        pids = " ".join(str(process.pid) for process in strays.orphans)
        yield Line("leftovers", "note", f"vLLM without its server: {names}", f"`kill -9 {pids}`")
    for process in strays.others:
        text = f"{process} is vLLM, and of no server of specserve"
        yield Line("leftovers", "note", text, f"`kill {process.pid}` where nobody needs it")
