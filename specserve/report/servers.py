"""A server's life on the terminal or as JSON lines, and the table of detached servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from specserve.errors import SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import LiveLine, escaped, in_one_line, out, say
from specserve.report.page import Items, text_lines
from specserve.report.text import (
    DASH,
    Column,
    Table,
    duration,
    figure,
    json_document,
    json_values,
)
from specserve.serve import events

if TYPE_CHECKING:
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
            return f"ready in {duration(event.elapsed_s)}"
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
