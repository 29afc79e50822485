"""How a child in vLLM's interpreter speaks: JSON lines on copies of its standard streams."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import IO, Any

_LONGEST_ERROR = 600


class JsonLines:
    """The two private ends of the pipe; all else in this process sees /dev/null and stderr."""

    def __init__(self) -> None:
        # private descriptors: vLLM prints to stdout, and a forked engine closes sys.stdin
        self._input: IO[bytes] = os.fdopen(os.dup(0), "rb")
        self._output: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def read(self) -> Iterator[dict[str, Any]]:
        """The messages of the parent, as they come, until it closes its end."""
        for line in self._input:
            if line.endswith(b"\n"):
                yield json.loads(line)

    def write(self, message: dict[str, Any]) -> None:
        """One message; a parent that no longer reads is gone: the end of the input says so."""
        with contextlib.suppress(BrokenPipeError):
            self._output.write(json.dumps(message) + "\n")
            self._output.flush()

    def send(self, event: str, **fields: object) -> None:
        """A message about what happened."""
        self.write({"event": event, **fields})


def message_in(line: bytes) -> dict[str, Any] | None:
    """The message on a line of a child; None for what a library printed before `JsonLines`."""
    with contextlib.suppress(ValueError):
        message: dict[str, Any] = json.loads(line[line.index(b"{") :])
        return message
    return None


def error_text(error: BaseException | str) -> str:
    """What an error says, on one line that is not too long; its class if it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


def run_child(work: Callable[[JsonLines], None]) -> int:
    """Do a child's work; exit code 0, or 1 after the message `failed`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a Ctrl-C reaches it, not us
    lines = JsonLines()
    try:
        work(lines)
    except Exception as error:
        import traceback

        traceback.print_exc()  # to the log, where the cause is looked for
        lines.send("failed", error=error_text(error))
        return 1
    return 0
