"""Child processes of a report: started with output to files, waited for within the time left, always ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpureport.step import OutOfTime, StepFailed

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "PYTHONDONTWRITEBYTECODE": "",  # a start would take twice as long
}
PATIENCE_S = 60.0
"""`up` needs up to half a minute to end vLLM; then everything is killed."""
_PR_SET_PDEATHSIG = 1
_TAIL_LINES = 30


@dataclass
class Child:
    """One command that runs; its output lies in two files."""

    name: str
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    began: float = field(default_factory=time.monotonic)

    def tail(self) -> str:
        """The end of what it printed, errors last."""
        return "\n".join(part for part in (tail(self.out), tail(self.err)) if part)


class Children:
    """Starts commands and keeps them within the time left."""

    def __init__(self, *, state: Path, remaining_s: Callable[[], float]) -> None:
        """`state`: the folder in which specserve keeps logs and servers of this run."""
        self._remaining_s = remaining_s
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(paths),
            "SPECSERVE_STATE_DIR": str(state),
        }

    def start(self, argv: Sequence[str], *, folder: Path, name: str) -> Child:
        """Start a command; the caller ends it."""
        folder.mkdir(parents=True, exist_ok=True)
        out, err = folder / f"{name}.out", folder / f"{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                executable(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.env,
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=_end_with_parent(),  # noqa: PLW1509  # this process has one thread
            )
        return Child(name, process, out, err)

    def check_time(self) -> None:
        """Raise OutOfTime when the minutes given are over."""
        if self._remaining_s() <= 0:
            raise OutOfTime

    def run(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        name: str,
        limit_s: float,
        accepted: Sequence[int] = (0,),
        is_late: bool = False,
    ) -> Child:
        """Run a command to its end. Raises StepFailed and, unless it may be late, OutOfTime."""
        child = self.start(argv, folder=folder, name=name)
        try:
            while child.process.poll() is None:
                if not is_late:
                    self.check_time()
                if time.monotonic() - child.began > limit_s:
                    raise StepFailed(f"`{name}` took longer than {limit_s:.0f} s", log=child.tail())
                time.sleep(0.1)
        finally:
            end(child)
        if child.process.returncode not in accepted:
            raise StepFailed(
                f"`{name}` ended with exit code {child.process.returncode}: {last_line(child)}",
                log=child.tail(),
            )
        return child

    def run_json(
        self, argv: Sequence[str], *, folder: Path, name: str, limit_s: float, is_late: bool = False
    ) -> dict[str, Any]:
        """The JSON object that a command prints; exit code 1 is an answer too (findings, a missed promise)."""
        child = self.run(argv, folder=folder, name=name, limit_s=limit_s, accepted=(0, 1), is_late=is_late)
        try:
            content = json.loads(child.out.read_text(encoding="utf-8"))
        except ValueError:
            raise StepFailed(f"`{name}` printed no JSON", log=child.tail()) from None
        if not isinstance(content, dict):
            raise StepFailed(f"`{name}` printed no JSON object", log=child.tail())
        return content


def executable(argv: Sequence[str]) -> list[str]:
    """The command with this interpreter: `specserve` and `python` stand for it, installed or not."""
    program = {"specserve": [sys.executable, "-m", "specserve"], "python": [sys.executable]}.get(argv[0])
    return [*(program or [argv[0]]), *argv[1:]]


def filled(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with `{name}` replaced."""
    known = re.compile("|".join(re.escape(f"{{{name}}}") for name in values) or "(?!)")
    return [known.sub(lambda match: values[match[0][1:-1]], word) for word in argv]


def end(child: Child) -> None:
    """End a command as Ctrl-C does, and with SIGKILL if that takes too long."""
    if child.process.poll() is not None:
        return
    with _deaf(), contextlib.suppress(ProcessLookupError):
        child.process.send_signal(signal.SIGINT)
        try:
            child.process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait(timeout=PATIENCE_S)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """No second signal breaks into the stopping of a server, which is bounded."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tail(file: Path, *, lines: int = _TAIL_LINES) -> str:
    """The last lines of a file; empty if it cannot be read."""
    try:
        text = file.read_bytes()[-65536:].decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def last_line(child: Child) -> str:
    """The line that most likely says why a command failed: that of `error:`, else the last."""
    lines = [line for line in child.tail().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error")]
    return (errors or lines or ["it printed nothing"])[-1].strip()


def _end_with_parent() -> Callable[[], None] | None:
    """Ask the kernel to end the child when this process is killed -9 (Linux)."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) and None
