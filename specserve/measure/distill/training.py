"""The child that trains and simulates, as a process that can be stopped without losing what it learned."""

from __future__ import annotations

import importlib.util
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specserve.errors import Interrupted, UsageError
from specserve.serve.causes import died
from specserve.serve.process import JsonChild
from specserve.serve.signals import StopRequest

CHILD = (sys.executable, "-P", "-m", "specserve.engine.distilling")
_ELSEWHERE = """
import runpy, sys
sys.path.append(sys.argv.pop())
runpy.run_module("specserve.engine.distilling", run_name="__main__")
"""
"""For another Python: its own packages come first, and specserve need not be among them."""
_TICK_S = 0.2
_SAVE_S = 60.0
"""How long a training that is stopped gets to save its state."""


def ask_child(
    request: Mapping[str, Any],
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None,
    python: str | None = None,
) -> dict[str, Any]:
    """The child's last message. `on_event` takes the others. `python`: the interpreter, if it is not this one.

    Raises LaunchError with the log if it dies, Interrupted for a signal, once its state is saved.
    """
    child = JsonChild(_command(python), env={}, log_path=log_path)
    asked_at: float | None = None
    try:
        child.tell(request)
        while True:
            if stop.count and asked_at is None:
                asked_at = time.monotonic()
                child.send(signal.SIGTERM)
            if asked_at is not None and (stop.count > 1 or time.monotonic() - asked_at > _SAVE_S):
                raise _interrupted(stop)
            try:
                message = child.receive(_TICK_S)
            except queue.Empty:
                continue
            if asked_at is not None and (message is None or message["event"] != "done"):
                if message is None or message["event"] == "stopped":
                    raise _interrupted(stop)
                continue
            if message is None or message["event"] == "failed":
                child.wait()
                said = str(message["error"]) if message is not None else None
                raise died(child, str(request["work"]), after_s=child.elapsed_s, said=said)
            if message["event"] == "done":
                return message
            on_event(message)
    finally:
        child.close()


def has_speculators(python: str | None) -> bool:
    """Whether an interpreter, by default this one, can train heads. Raises UsageError if it does not run."""
    if python is None:
        return importlib.util.find_spec("speculators") is not None
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('speculators') is None)"
    try:
        done = subprocess.run([python, "-P", "-c", probe], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"`--python {python}` does not run: {error}") from None
    return done.returncode == 0


def _command(python: str | None) -> tuple[str, ...]:
    if python is None:
        return CHILD
    return (python, "-P", "-c", _ELSEWHERE, str(Path(__file__).parents[3]))


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(
        "interrupted; what was learned is kept, and the same command resumes",
        signal_number=stop.signal or signal.SIGINT,
    )
