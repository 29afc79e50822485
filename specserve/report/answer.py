"""What `ask` and `generate` show: an answer as it comes, its figures, the state of a long run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from specserve.metrics.counters import Acceptance
from specserve.report.console import LiveLine, escaped, say
from specserve.report.text import count
from specserve.serve.client import Answer, SpeculationCounts

if TYPE_CHECKING:
    from specserve.serve.batch import Generated, GenerateStatus

_SHOWN_ERRORS = 20


def acceptance_line(run: Acceptance | None) -> str:
    """Returns the rate, the mean length and the rate per position; or why there is none."""
    if run is None:
        return "no speculation"
    rate, length = run.acceptance_rate, run.mean_acceptance_length
    if rate is None or length is None:
        return "speculation is on, but nothing was drafted"
    positions = " ".join(f"{share:.2f}" for share in run.per_position)
    return f"acceptance {rate:.2f}, mean acceptance length {length:.2f}, per position {positions}"


def figures(answer: Answer) -> list[str]:
    """Returns the lines under an answer: its speed, and what speculation did for it."""
    parts = []
    if answer.ttft_s is not None:
        parts.append(f"TTFT {1000 * answer.ttft_s:.0f} ms")
    if answer.completion_tokens is not None:
        parts.append(count(answer.completion_tokens, "token"))
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    if answer.finish_reason == "length":
        parts.append("stopped at the token limit")
    return [", ".join(parts), speculation_line(answer.speculation)]


def speculation_line(speculation: SpeculationCounts) -> str:
    """Returns the acceptance, and whether others share in it."""
    if speculation.is_on is None or (speculation.is_on and speculation.basis is None):
        return "acceptance unknown: the server shows no metrics"
    line = acceptance_line(speculation.acceptance if speculation.is_on else None)
    if speculation.other_requests:
        others = count(speculation.other_requests, "other request")
        line += f" ({others} ran: acceptance is the server's)"
    return line


class AnswerScreen:
    """Text to stdout, reasoning to stderr; what was begun ends with a newline whatever happens."""

    def __init__(self) -> None:
        self._open: TextIO | None = None

    def __enter__(self) -> AnswerScreen:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end()

    def show(self, kind: str, text: str) -> None:
        """Write a piece of the answer as it comes."""
        stream = sys.stdout if kind == "text" else sys.stderr
        if stream is not self._open:
            self._end()
        self._open = stream  # before the write, which a Ctrl-C may end
        encoding = stream.encoding or "utf-8"
        stream.write(escaped(text).encode(encoding, "replace").decode(encoding))
        stream.flush()
        if text.endswith("\n"):
            self._open = None

    def _end(self) -> None:
        if self._open is not None:
            self._open.write("\n")
            self._open.flush()
            self._open = None


def say_generated(found: Generated) -> None:
    """Say how fast a file of prompts was answered, and which of its lines could not be done."""
    if found.took_s is not None:
        speed = found.completion_tokens / found.took_s
        say(f"{found.completion_tokens} tokens in {found.took_s:.1f} s: {speed:.1f} tokens/s")
        say(acceptance_line(found.acceptance))
    if found.errors:
        say(f"{count(len(found.errors), 'line')} failed; each has its `error` in the output:")
    for error in found.errors[:_SHOWN_ERRORS]:
        say(f"  {escaped(error)}")


@contextlib.contextmanager
def generation_line() -> Iterator[Callable[[GenerateStatus], None]]:
    """Yields what shows lines done and tokens per second, in one line that is rewritten."""

    def show(status: GenerateStatus) -> None:
        took = f"{time.monotonic() - status.began_s:.0f} s"
        if status.ready_s is None:
            line.show(f"starting the engine, {took}")
        else:
            rate = status.tokens / max(time.monotonic() - status.ready_s, 1.0)
            lines = f"{status.done} of {status.total} lines"
            line.show(f"generating: {lines}, {took}, {rate:.0f} tokens/s")

    with LiveLine(every_s=10.0) as line:
        yield show
