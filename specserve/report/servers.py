"""A server's life on the terminal or as JSON lines, the table of servers, and what one answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.errors import SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import LiveLine, escaped, in_one_line, out, say
from specserve.report.page import Items, text_lines
from specserve.report.text import (
    DASH,
    Column,
    Table,
    count,
    duration,
    figure,
    json_document,
    json_values,
)
from specserve.serve import events

if TYPE_CHECKING:
    from specserve.serve.client import Answer
    from specserve.serve.records import Seen

_COLUMNS = ("NAME", "STATE", "URL", "UP", "DRAFTS", "ACCEPTED")
_PROMPT = "def __len__(self):"


def table(servers: Sequence[Seen], *, now_s: float | None = None) -> str:
    """Returns a line per server, and below what is wrong."""
    now_s = time.time() if now_s is None else now_s
    rows, remarks = [], []
    for seen in servers:
        url = up = drafts = DASH
        if (record := seen.record) is not None:
            url = record.url
            if seen.state != "dead":
                up = duration(now_s - record.started_at_s)
            drafts = record.drafts or DASH
        if seen.detail:
            remarks.append((seen.name, seen.detail))
        if record is not None and record.hint:
            remarks.append(("", f"hint: {record.hint}"))
        accepted = figure(seen.acceptance_rate)
        rows.append((seen.name, seen.state, url, up, drafts, accepted))
    lines = Table([Column(name, "text") for name in _COLUMNS], rows, keys=1).text(indent=0)
    return "\n".join([*lines, *text_lines(Items(remarks), sys.stdout)])


def event_words(event: events.Event) -> str:
    """Returns what has happened to a server, in a line."""
    match event:
        case events.Started(pid, log_path):
            return f"starting vLLM (pid {pid}), log: {in_one_line(log_path)}"
        case events.Progress(phase, took_s, is_over):
            so_far = "" if is_over else " so far"
            return f"  {phase} …{f' {duration(took_s)}{so_far}' if took_s else ''}"
        case events.Ready():
            lines = (f"ready in {duration(event.elapsed_s)}", event.memory)
            return "\n".join(filter(None, lines))
        case events.Stopping(signal, grace_s):
            return f"sent {signal}; running requests may finish for up to {duration(grace_s)}"
        case events.Stopped(took_s, killed):
            how = " by SIGKILL" if killed else ""
            return f"stopped in {duration(took_s)}{how}; nothing is left running"


class TextView:
    """A server's life: on a terminal the phase is a live line, in a pipe a line when it ends.

    When it is ready: where it is, how it is asked and how it is stopped.
    """

    def __init__(
        self, plan: LaunchPlan, *, stream: TextIO | None = None, stays_as: str | None = None
    ) -> None:
        """`stays_as`: the name under which it is left running."""
        self._plan, self._stays_as = plan, stays_as
        self._line = LiveLine(stream, every_s=30.0)

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        if isinstance(event, events.Progress) and not event.is_over:
            self._line.show(event_words(event))
        else:
            say(event_words(event))
        if isinstance(event, events.Ready):
            if event.url is not None:
                out(ready_block(event, self._plan))
            name = self._stays_as
            say(f"`specserve down {name}` stops it" if name else "Ctrl-C stops it")


class JsonView:
    """A JSON object on stderr for each event; that of a ready server stands on stdout too."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._name = plan.name

    def __call__(self, event: events.Event) -> None:
        """Write it; the half-second news are left out."""
        if isinstance(event, events.Progress) and event.took_s and not event.is_over:
            return
        word = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        text = self._say(word, **json_values(event))
        if isinstance(event, events.Ready):
            out(text)

    def failed(self, error: SpecserveError) -> None:
        """The error as an event of its own."""
        names = ("message", "causes", "hint", "exit_code")
        self._say("failed", **{name: getattr(error, name) for name in names})

    def _say(self, event: str, **fields: object) -> str:
        text = json_document({"name": self._name, "event": event, **fields}, indent=None)
        say(text)
        return text


def ready_block(ready: events.Ready, plan: LaunchPlan) -> str:
    """Returns where the server is, and commands that ask it, a line each."""
    lines = {"url": in_one_line(f"{ready.url}/v1"), "model": in_one_line(ready.model)}
    body = json.dumps({"model": ready.model, "prompt": _PROMPT, "max_tokens": 48, "temperature": 0})
    key, url = plan.api_key_env, shlex.quote(ready.url or plan.url)
    header = f' -H "Authorization: Bearer ${key}"' if key else ""
    curl = f"curl -s {url}/v1/completions{header} -H 'Content-Type: application/json'"
    lines["curl"] = f"{curl} -d {shlex.quote(body)}"
    secret = f"VLLM_API_KEY=${key} " if key and key != "VLLM_API_KEY" else ""
    ask = f"specserve ask '{_PROMPT}' --max-tokens 48 --temperature 0 --server {url}"
    lines["ask"] = f"{secret}{ask}"
    return "\n".join(f"{label:<9}{text}" for label, text in lines.items())


def print_log(lines: Sequence[str]) -> None:
    """Lines of a log to stdout; text from outside in them commands no terminal and no CI."""
    shown = [escaped(line) for line in lines]
    if os.environ.get("GITHUB_ACTIONS") == "true":
        # a job obeys `::…` at the start of a line, and `##[…` anywhere
        shown = [re.sub(r"^(\s*):(?=:)|#(?=#\[)", r"\1\\", line) for line in shown]
    if shown:
        out("\n".join(shown))


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
