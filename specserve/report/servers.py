"""A server's life on the terminal or as JSON lines, and the table of detached servers."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specserve.errors import LaunchError, SpecserveError
from specserve.models.read import model_note
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import WIDTH, LiveLine, in_one_line, out, say, styled
from specserve.report.numbers import age, duration, number
from specserve.report.serializer import VERSION, json_values, picked
from specserve.serve import events
from specserve.serve.logs import GIB, Figures

if TYPE_CHECKING:
    from specserve.serve.detached.observe import Seen
    from specserve.serve.detached.registry import Record

_HEAD = ("NAME", "STATE", "PORT", "UP", "MODEL", "DRAFTS", "ACCEPTED", "DEVICES", "PID", "FINGERPRINT")
_OPTIONAL = ("FINGERPRINT", "PID", "DEVICES", "MODEL")
"""Columns that a narrow terminal goes without, the first one first."""


def table(servers: Sequence[Seen], *, now_s: float | None = None) -> str:
    """Returns one line per server, and under it what is wrong with it."""
    now_s = time.time() if now_s is None else now_s
    rows = [_cells(seen, now_s=now_s) for seen in servers]
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    head, *lines = next(
        text
        for dropped in range(len(_OPTIONAL) + 1)
        if (text := _lines(rows, without=_OPTIONAL[:dropped]))
        and (dropped == len(_OPTIONAL) or _fits(text, width))
    )
    parts = [head]
    for line, seen in zip(lines, servers, strict=True):
        parts.append(line)
        if seen.detail:
            parts.append(f"  {in_one_line(seen.detail)}")
        ended = seen.record.ended if seen.record is not None else None
        if ended is not None and ended.hint:
            parts.append(f"  hint: {in_one_line(ended.hint)}")
    return "\n".join(parts) + "\n"


def _lines(rows: Sequence[Sequence[str]], *, without: Sequence[str]) -> list[str]:
    kept = [at for at, name in enumerate(_HEAD) if name not in without]
    cells = [_HEAD, *rows]
    widths = {at: max(len(row[at]) for row in cells) for at in kept}
    return ["  ".join(row[at].ljust(widths[at]) for at in kept).rstrip() for row in cells]


def _fits(lines: Sequence[str], width: int) -> bool:
    return max(map(len, lines)) <= width


def _cells(seen: Seen, *, now_s: float) -> tuple[str, ...]:
    record = seen.record
    if record is None:
        pid = str(seen.pids[0]) if seen.pids else "-"
        return (seen.name, seen.state, "-", "-", "-", "-", "-", "-", pid, "-")
    rate = seen.lately.acceptance_rate
    runs = seen.state not in ("dead", "gone")
    return (
        record.name,
        seen.state,
        str(record.port),
        age(now_s - record.started_at_s) if runs else "-",
        in_one_line(record.model),
        drafts(record),
        number(rate),
        in_one_line(",".join(record.devices)) or "-",
        str(record.leader[0]) if runs and record.leader else "-",
        in_one_line(record.fingerprint[:12]),
    )


def drafts(record: Record) -> str:
    """Returns `draft_model K=4`, `-` without speculation."""
    if record.method is None:
        return "-"
    tokens = record.num_speculative_tokens
    return in_one_line(record.method) + (f" K={tokens}" if tokens is not None else "")


def as_json(servers: Sequence[Seen]) -> dict[str, Any]:
    """Returns all that is known; `acceptance_rate` is that of the last minute, null if nothing was drafted."""
    return {"version": VERSION, "servers": [_one(seen) for seen in servers]}


def _one(seen: Seen) -> dict[str, Any]:
    record = seen.record
    content: dict[str, Any] = {"name": seen.name, "state": seen.state, "detail": seen.detail or None}
    if record is None:
        return {**content, "pids": list(seen.pids)}
    runs = seen.state not in ("dead", "gone")
    return {
        **content,
        **picked(record, "profile", "fingerprint", "vllm", "url", "port"),
        "pid": record.leader[0] if record.leader else None,
        **picked(
            record, "devices", "model", "method", "num_speculative_tokens", "started_at_s", "ready_at_s"
        ),
        "uptime_s": round(time.time() - record.started_at_s, 1) if runs else None,
        **picked(seen, "running_requests", "waiting_requests"),
        "acceptance_rate": seen.lately.acceptance_rate,
        "log": record.log_path,
        "api_key_env": record.api_key_env,
        "ended": picked(record.ended, "at_s", "exit_code", "message", "cause", "hint")
        if record.ended
        else None,
    }


_STILL_EVERY_S = 30.0
_PROMPT = "def __len__(self):"


class TextView:
    """Phases as they happen: a live line on a terminal, a line per finished phase in a pipe."""

    def __init__(
        self, plan: LaunchPlan, *, stream: TextIO | None = None, stays_as: str | None = None
    ) -> None:
        """`stays_as`: the name under which it is left running."""
        self._plan = plan
        self._stays_as = stays_as
        self._stream = stream
        self._line = LiveLine(stream)
        self._log_path = ""
        self._stopping = False

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        match event:
            case events.Started():
                self._log_path = event.log_path
                say(f"starting vLLM {self._plan.vllm} (pid {event.pid}), log: {in_one_line(event.log_path)}")
            case events.PhaseStarted():
                self._line = LiveLine(self._stream, every_s=_STILL_EVERY_S, began_s=0.0)
                self._line.show(f"  {event.phase} …", at_s=0.0)
            case events.PhaseGoesOn():
                self._line.show(f"  {event.phase} … {duration(event.took_s)} so far", at_s=event.took_s)
            case events.PhaseEnded():
                self._line.erase()
                say(f"  {event.phase} … {duration(event.took_s)}")
            case events.Ready():
                say(f"ready in {duration(event.elapsed_s)}")
                out(ready_block(event, self._plan, log_path=self._log_path))
                if self._stays_as:
                    say(f"`specserve down {self._stays_as}` stops it")
                else:
                    say("Ctrl-C stops it")
            case events.Hangs():
                waits = f"while {event.running_requests} requests run and {event.waiting_requests} wait"
                say(
                    f"{styled('warning', 'yellow')}: no token for {duration(event.for_s)} {waits}: vLLM hangs"
                )
            case events.GoesOn() | events.Joined() | events.StaysCold():
                say(_news(event))
            case events.Stopping():
                self._stopping = True
                self._line.erase()
                grace = duration(event.grace_s)
                say(f"stopping: sent {event.signal}, waiting up to {grace}; Ctrl-C again ends it at once")
            case events.Stopped():
                self._line.erase()
                if self._stopping:
                    say(f"stopped in {duration(event.took_s)}{' by SIGKILL' if event.killed else ''}")

    def failed(self, error: SpecserveError) -> None:
        """The error itself is told by whoever ends the program."""
        self._line.erase()


class JsonView:
    """One JSON object per line on stderr for each event, `event` names it; where the server is, as one on stdout."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._log_path = ""

    def __call__(self, event: events.Event) -> None:
        """Write it; the half-second news are left out."""
        if isinstance(event, events.PhaseGoesOn):
            return
        if isinstance(event, events.Started):
            self._log_path = event.log_path
        name = "".join(
            f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__
        )
        self._write({"event": name.lstrip("_"), **json_values(event)})
        if isinstance(event, events.Ready):
            out(json.dumps(ready_json(event, self._plan, log_path=self._log_path)))

    def failed(self, error: SpecserveError) -> None:
        """The error as an event of its own."""
        fields: dict[str, object] = {"message": error.message, "hint": error.hint, "causes": error.causes}
        if isinstance(error, LaunchError):
            fields |= {"phase": error.phase, "log_path": error.log_path}
        self._write({"event": "failed", **fields, "exit_code": error.exit_code})

    def _write(self, fields: dict[str, object]) -> None:
        say(json.dumps({"version": VERSION, "name": self._plan.name, **fields}))


def _news(event: events.GoesOn | events.Joined | events.StaysCold) -> str:
    if isinstance(event, events.GoesOn):
        return "tokens come again"
    if isinstance(event, events.StaysCold):
        warning = styled("warning", "yellow")
        return f"{warning}: the warm-up request failed, so the first request is slow: {in_one_line(event.reason)}"
    return (
        f"node {event.node_rank} of {event.nodes} joined in {duration(event.elapsed_s)}\n"
        "node 0 answers the requests; Ctrl-C stops this one, and the others with it"
    )


def ready_block(ready: events.Ready, plan: LaunchPlan, *, log_path: str) -> str:
    """Where the server is and what it holds, one thing per line."""
    key = plan.api_key_env
    note = model_note(Path(str(plan.engine_kwargs.get("model"))))
    lines = [
        ("url", in_one_line(f"{ready.url}/v1")),
        ("model", in_one_line(ready.model)),
        *([("note", in_one_line(note))] if note else []),
        ("memory", memory_line(ready.figures, resident_bytes=ready.resident_bytes)),
        ("KV cache", kv_cache_line(ready.figures)),
        ("log", in_one_line(log_path)),
        ("curl", _curl(ready, key=key)),
        ("ask", _ask(ready, key=key)),
    ]
    return "".join(f"{label:<9}{text}\n" for label, text in lines)


def ready_json(ready: events.Ready, plan: LaunchPlan, *, log_path: str) -> dict[str, Any]:
    """Returns the same for scripts; figures that vLLM did not report are null."""
    return {
        "version": VERSION,
        "name": plan.name,
        "url": f"{ready.url}/v1",
        "model": ready.model,
        **picked(plan, "fingerprint", "vllm"),
        **picked(ready, "figures", "resident_bytes"),
        "log": log_path,
        "api_key_env": plan.api_key_env,
    }


def memory_line(figures: Figures, *, resident_bytes: int | None) -> str:
    """Weights, KV cache and graphs as vLLM reported them, and the host memory of its processes."""
    if figures.weights_gib is not None:
        weights = f"weights {_gib(figures.weights_gib)} per GPU"
    elif figures.checkpoint_gib is not None:
        weights = f"weights {_gib(figures.checkpoint_gib)} on disk"
    else:
        weights = "weights unknown"
    kv_cache = "unknown" if figures.kv_cache_gib is None else _gib(figures.kv_cache_gib)
    parts = [weights, f"KV cache {kv_cache}"]
    if figures.graphs_gib is not None:
        parts.append(f"CUDA graphs {_gib(figures.graphs_gib)}")
    if resident_bytes is not None:
        parts.append(f"host memory {_gib(resident_bytes / GIB)}")
    return ", ".join(parts)


def kv_cache_line(figures: Figures) -> str:
    """How many tokens fit, and how many requests of full length that is."""
    if figures.kv_cache_tokens is None:
        return "size unknown"
    line = f"{figures.kv_cache_tokens:,} tokens"
    if figures.max_concurrency is not None:
        length = f"{figures.max_model_len:,} tokens" if figures.max_model_len else "full length"
        line += f": {figures.max_concurrency:.1f} requests of {length} at once"
    return line


def _gib(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib < 10 else f"{gib:.1f} GiB"


def _curl(ready: events.Ready, *, key: str | None) -> str:
    body = json.dumps({"model": ready.model, "prompt": _PROMPT, "max_tokens": 48, "temperature": 0})
    authorization = f' -H "Authorization: Bearer ${key}"' if key else ""
    return (
        f"curl -s {shlex.quote(ready.url)}/v1/completions{authorization} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _ask(ready: events.Ready, *, key: str | None) -> str:
    url = f" --url {shlex.quote(ready.url)}"  # also on port 8000: without it, `ask` takes a detached server first
    variable = f" --api-key-env {key}" if key else ""
    return f"{program()} ask --completion '{_PROMPT}' --max-tokens 48 --temperature 0{url}{variable}"


def program() -> str:
    """What to type for this program: `specserve` where that is it, else its path as it was called."""
    called = sys.argv[0]
    if Path(called).name != "specserve":
        return "specserve"
    found = shutil.which("specserve")
    same = found is not None and os.path.realpath(found) == os.path.realpath(called)
    return "specserve" if same else shlex.quote(called)


class StartView:
    """As `up` tells it, without where the server is: it goes again."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._view = TextView(plan)

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        if isinstance(event, events.Ready):
            say(f"ready in {duration(event.elapsed_s)}")
        elif isinstance(event, events.Stopping):
            say("stopping the server")
        else:
            self._view(event)

    def failed(self, error: SpecserveError) -> None:
        """The error itself is told by whoever ends the program."""
        self._view.failed(error)
