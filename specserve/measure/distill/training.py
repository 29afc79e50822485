"""The child that trains and simulates, as a process that can be stopped without losing what it learned."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.serve.causes import count_oom_kills, died
from specserve.serve.process import Child, clear
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
    oom_kills = count_oom_kills()
    child = Child(_command(python), env={}, log_path=log_path, has_pipes=True)
    messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(child, messages), daemon=True)
    reader.start()
    asked_at: float | None = None
    """When the child was asked to save its state and to end."""
    try:
        child.input.write(json.dumps(request).encode() + b"\n")
        child.input.flush()
        while True:
            if stop.count and asked_at is None:
                asked_at = time.monotonic()
                child.send(signal.SIGTERM)
            if asked_at is not None and (stop.count > 1 or time.monotonic() - asked_at > _SAVE_S):
                raise _interrupted(stop)
            try:
                message = messages.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            event = message["event"] if message is not None else "gone"
            if message is not None and event == "done":
                return message
            if asked_at is not None:
                if event in ("gone", "stopped"):
                    raise _interrupted(stop)
            elif message is None or event == "failed":
                child.wait(3.0)
                raise died(
                    str(request["work"]),
                    exit_code=child.exit_code,
                    after_s=child.elapsed_s,
                    log_path=log_path,
                    oom_kills=oom_kills,
                    said=str(message["error"]) if message is not None else None,
                )
            else:
                on_event(message)
    except BrokenPipeError:
        raise LaunchError(f"the {request['work']} process ended at once", hint=f"see {log_path}") from None
    finally:
        clear(child)
        with contextlib.suppress(OSError):  # what the child did not read cannot be flushed
            child.input.close()
        reader.join(3.0)


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


def _read(child: Child, messages: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    with child.output as stream:
        for line in stream:
            try:
                messages.put(json.loads(line))
            except ValueError:  # a line cut off by the child's death
                continue
    messages.put(None)


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(
        "interrupted; what was learned is kept, and the same command resumes",
        signal_number=stop.signal or signal.SIGINT,
    )
