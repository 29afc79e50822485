"""Files by which vLLM's workers found each other and which nobody removed. Judges by age: nobody holds them open."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"vllm_dist_[0-9a-f]{32}")
"""vllm/utils/network_utils.py 0.32, get_distributed_init_method: a FileStore of torch in the temporary folder."""
_TORCH = re.compile(r"/libtorch\w*\.so\b")


def find_rendezvous(proc: Path, *, user: int, folder: Path | None = None) -> tuple[Path, ...]:
    """Those that are older than every living process with torch in it: none of these can have made them."""
    found = list(_files(folder or Path(tempfile.gettempdir()), user))
    if not found:
        return ()
    since_s = min(_starts(proc), default=float("inf"))
    return tuple(sorted(path for path, changed_s in found if changed_s < since_s))


def _files(folder: Path, user: int) -> Iterable[tuple[Path, float]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == user and stat.S_ISREG(status.st_mode):
                        yield Path(entry.path), status.st_mtime


def _starts(proc: Path) -> Iterable[float]:
    """When each process with torch in it began, in seconds since the epoch. (proc_pid_stat(5), field 22)"""
    boot = re.search(r"^btime (\d+)$", (proc / "stat").read_text(encoding="ascii"), re.MULTILINE)
    if boot is None:
        raise ValueError("the kernel does not tell when the host was started")
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                if _TORCH.search((entry / "maps").read_text(encoding="utf-8", errors="replace")):
                    text = (entry / "stat").read_bytes()
                    ticks = int(text[text.rindex(b")") + 2 :].split()[19])
                    yield int(boot[1]) + ticks / os.sysconf("SC_CLK_TCK")
