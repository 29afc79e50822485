"""What `ask` and `generate` show: an answer as it comes, its figures, the state of a long run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from specserve.report.console import LiveLine, escaped, say
from specserve.report.text import count
from specserve.serve.client import Answer

_SHOWN_ERRORS = 20


def figures(answer: Answer) -> list[str]:
    """Returns the lines under an answer: its speed, and what speculation did meanwhile."""
    parts = []
    if answer.ttft_s is not None:
        parts.append(f"TTFT {1000 * answer.ttft_s:.0f} ms")
    if answer.completion_tokens is not None:
        parts.append(count(answer.completion_tokens, "token"))
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
    if answer.finish_reason == "length":
        parts.append("stopped at the token limit")
    return [", ".join(parts), _speculation(answer)]


def _speculation(answer: Answer) -> str:
    if answer.speculates is False:
        return "no speculation"
    rate = answer.acceptance and answer.acceptance.acceptance_rate
    if answer.acceptance is None:
        return "acceptance unknown: the server shows no metrics"
    if rate is None:
        return "speculation is on, but nothing was drafted"
    positions = " ".join(f"{share:.2f}" for share in answer.acceptance.per_position)
    length = answer.acceptance.mean_acceptance_length
    line = f"acceptance {rate:.2f}, mean acceptance length {length:.2f}, per position {positions}"
    if answer.other_requests:
        others = count(answer.other_requests, "other request")
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


def say_failed_lines(errors: Sequence[str]) -> None:
    """Say which lines of a file of prompts could not be done."""
    if errors:
        say(f"{count(len(errors), 'line')} failed; each has its `error` in the output:")
    for error in errors[:_SHOWN_ERRORS]:
        say(f"  {escaped(error)}")


@contextlib.contextmanager
def generation_line() -> Iterator[Callable[[str], None]]:
    """Yields what shows how far a long run is, in one line that is rewritten."""
    with LiveLine(every_s=10.0) as line:
        yield line.show
