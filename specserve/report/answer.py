"""What `ask` and `generate` show.

An answer as it comes, its figures, and how far a file of prompts is.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from specserve.metrics.counters import Acceptance
from specserve.report.console import LiveLine, escaped, say
from specserve.report.text import VERSION, count, fields_of
from specserve.serve.client import Answer, SpeculationCounts

if TYPE_CHECKING:
    from specserve.serve.batch import Generated, GenerateStatus

_SHOWN_ERRORS = 20


def acceptance_line(run: Acceptance | None) -> str:
    """One line: the rate, the mean length, the rate per position; or why there is none."""
    if run is None:
        return "no speculation"
    rate, length = run.acceptance_rate, run.mean_acceptance_length
    if rate is None or length is None:
        return "speculation is on, but nothing was drafted"
    positions = " ".join(f"{share:.2f}" for share in run.per_position)
    return f"acceptance {rate:.2f}, mean acceptance length {length:.2f}, per position {positions}"


def acceptance_json(run: Acceptance | None) -> dict[str, object] | None:
    """The same for scripts; None without speculation, null figures where nothing was drafted."""
    if run is None:
        return None
    return {
        **fields_of(run, "acceptance_rate", "mean_acceptance_length"),
        "acceptance_rate_per_position": list(run.per_position),
        "num_drafts": run.drafts,
        "num_draft_tokens": run.draft_tokens,
        "num_accepted_tokens": run.accepted_tokens,
    }


def figures(answer: Answer) -> list[str]:
    """The lines under an answer: its speed, and what speculation did for it."""
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
    """The acceptance, and how much of it is this request's own."""
    if speculation.is_on is None:
        return "acceptance unknown: the server shows no metrics"
    if not speculation.is_on:
        return "no speculation"
    if speculation.basis is None:
        return "acceptance unknown: the server's metrics went away"
    line = acceptance_line(speculation.acceptance)
    if speculation.other_requests:
        others = count(speculation.other_requests, "other request")
        line += f" ({others} ran: acceptance is the server's)"
    return line


def answer_json(answer: Answer, *, url: str) -> dict[str, object]:
    """Returns the same for scripts.

    Times in ms, `speculation` null if the server does not speculate.
    """
    speculation = answer.speculation
    return {
        "version": VERSION,
        "url": url,
        **fields_of(answer, "model", "mode", "text"),
        "reasoning": answer.reasoning or None,
        **fields_of(answer, "finish_reason", "prompt_tokens", "completion_tokens"),
        "ttft_ms": None if answer.ttft_s is None else round(1000 * answer.ttft_s, 3),
        "tokens_per_s": None if answer.tokens_per_s is None else round(answer.tokens_per_s, 3),
        "speculates": speculation.is_on,
        "speculation": acceptance_json(speculation.acceptance),
        "speculation_basis": speculation.basis,
        "other_requests": speculation.other_requests,
    }


class AnswerScreen:
    """Text to stdout, reasoning to stderr, each ended with a newline whatever happens.

    A context manager.
    """

    def __init__(self) -> None:
        self._open: TextIO | None = None

    def __enter__(self) -> AnswerScreen:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end()

    def show(self, kind: str, text: str) -> None:
        """Write a piece of the answer as it comes."""
        stream = sys.stdout if kind == "text" else sys.stderr
        if self._open is not None and stream is not self._open:
            self._end()
        self._open = stream  # before the write, which a Ctrl-C may end
        encoding = stream.encoding or "utf-8"
        stream.write(escaped(text).encode(encoding, "replace").decode(encoding))
        stream.flush()
        if text.endswith("\n"):
            self._open = None

    def _end(self) -> None:
        if self._open is not None:
            stream, self._open = self._open, None
            stream.write("\n")
            stream.flush()


def say_generated(found: Generated) -> None:
    """Say how fast a file of prompts was answered, and which of its lines could not be done."""
    if found.took_s is not None:
        speed = found.completion_tokens / found.took_s
        say(f"{found.completion_tokens} tokens in {found.took_s:.1f} s: {speed:.1f} tokens/s")
        say(acceptance_line(found.acceptance))
    if found.errors:
        say(f"{count(len(found.errors), 'line')} failed:")
        for error in found.errors[:_SHOWN_ERRORS]:
            say(f"  {escaped(error)}")
        if len(found.errors) > _SHOWN_ERRORS:
            say(
                f"  and {len(found.errors) - _SHOWN_ERRORS} more, "
                "each with its `error` in the output"
            )


@contextlib.contextmanager
def generation_line() -> Iterator[Callable[[GenerateStatus], None]]:
    """Yields what shows lines done and tokens per second; the live line is erased at the end."""
    line = LiveLine(every_s=10.0)

    def show(status: GenerateStatus) -> None:
        now_s = time.monotonic()
        phase, rate = "starting the engine", ""
        if status.ready_s is not None:
            phase = f"generating: {status.done} of {status.total} lines"
            if status.tokens and now_s > status.ready_s:
                rate = f", {status.tokens / (now_s - status.ready_s):.0f} tokens/s"
        line.show(f"{phase}, {now_s - status.began_s:.0f} s{rate}")

    try:
        yield show
    finally:
        line.erase()
