"""A server's life on the terminal or as JSON lines, and the table of detached servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from specserve.errors import FactError, LaunchError, SpecserveError
from specserve.files import open_regular
from specserve.models.read import model_note
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import WIDTH, LiveLine, escaped, in_one_line, out, say, styled
from specserve.report.page import Items, text_lines
from specserve.report.text import (
    DASH,
    VERSION,
    Column,
    Table,
    decimals,
    duration,
    fields_of,
    json_values,
)
from specserve.serve import events
from specserve.serve.events import GIB, MemoryFigures
from specserve.serve.logs import LogTail

if TYPE_CHECKING:
    from specserve.serve.detached.observe import Seen

_ENDED = ("dead", "gone")
_STILL_EVERY_S = 30.0
_WORKFLOW_COMMAND = re.compile(r"^(\s*)::|##\[")
"""What a job of GitHub Actions would obey when it is printed."""
_PROMPT = "def __len__(self):"


def table(servers: Sequence[Seen], *, now_s: float | None = None) -> str:
    """Returns a line per server, and below what is wrong; their models if there is room."""
    now_s = time.time() if now_s is None else now_s
    rows, remarks = [], []
    for seen in servers:
        record, method, up = seen.record, "", ""
        if record is not None and record.method is not None:
            tokens = f" K={record.num_speculative_tokens}" if record.num_speculative_tokens else ""
            method = record.method + tokens
        if record is not None and seen.state not in _ENDED:
            up = duration(now_s - record.started_at_s)
        accepted = decimals(seen.lately.acceptance_rate)
        cells = (seen.name, seen.state, str(record.port) if record else "", up, method, accepted)
        rows.append((*(cell or DASH for cell in cells), record.model if record else DASH))
        remarks += [(seen.name, seen.detail)] if seen.detail else []
        if record is not None and record.ended is not None and record.ended.hint:
            remarks.append(("", f"hint: {record.ended.hint}"))
    kinds = [
        Column(name, "text")
        for name in ("NAME", "STATE", "PORT", "UP", "DRAFTS", "ACCEPTED", "MODEL")
    ]
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    widest = [
        max(map(len, column)) for column in zip([each.name for each in kinds], *rows, strict=True)
    ]
    shown = len(kinds) - (sum(widest) + 2 * len(kinds) > width)
    whole = Table(kinds[:shown], [row[:shown] for row in rows], keys=1)
    return (
        "\n".join([*whole.text(width=width, indent=0), *text_lines(Items(remarks), sys.stdout)])
        + "\n"
    )


def as_json(servers: Sequence[Seen]) -> dict[str, Any]:
    """Returns all that is known; `acceptance_rate` is the last minute's, null without drafts."""
    return {"version": VERSION, "servers": [_one(seen) for seen in servers]}


def _one(seen: Seen) -> dict[str, Any]:
    record, ended = seen.record, seen.record.ended if seen.record else None
    content: dict[str, Any] = {
        "name": seen.name,
        "state": seen.state,
        "detail": seen.detail or None,
    }
    if record is None:
        return {**content, "pids": list(seen.pids)}
    launch = ("devices", "model", "method", "num_speculative_tokens", "started_at_s", "ready_at_s")
    return {
        **content,
        **fields_of(record, "profile", "fingerprint", "vllm", "url", "port"),
        "pid": record.leader[0] if record.leader else None,
        **fields_of(record, *launch),
        "uptime_s": round(time.time() - record.started_at_s, 1)
        if seen.state not in _ENDED
        else None,
        **fields_of(seen, "running_requests", "waiting_requests"),
        "acceptance_rate": seen.lately.acceptance_rate,
        "log": record.log_path,
        "api_key_env": record.api_key_env,
        "ended": fields_of(ended, "at_s", "exit_code", "message", "cause", "hint")
        if ended
        else None,
    }


class TextView:
    """Phases as they happen: a live line on a terminal, a line per finished phase in a pipe."""

    def __init__(
        self, plan: LaunchPlan, *, stream: TextIO | None = None, stays_as: str | None = None
    ) -> None:
        """`stays_as`: the name under which it is left running."""
        self._plan = plan
        self._end = f"`specserve down {stays_as}` stops it" if stays_as else "Ctrl-C stops it"
        self._stream = stream
        self._line = LiveLine(stream)
        self._log_path = ""
        self._stopping = False

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        warning = styled("warning", "yellow")
        match event:
            case events.Started(pid, log_path):
                self._log_path = log_path
                say(f"starting vLLM {self._plan.vllm} (pid {pid}), log: {in_one_line(log_path)}")
            case events.PhaseStarted(phase):
                self._line = LiveLine(self._stream, every_s=_STILL_EVERY_S, began_s=0.0)
                self._line.show(f"  {phase} …", at_s=0.0)
            case events.PhaseGoesOn(phase, took_s):
                self._line.show(f"  {phase} … {duration(took_s)} so far", at_s=took_s)
            case events.PhaseEnded(phase, took_s):
                self._line.erase()
                say(f"  {phase} … {duration(took_s)}")
            case events.Ready():
                self._ready(event)
            case events.Hangs(for_s, running, waiting):
                waits = f"while {running} requests run and {waiting} wait"
                say(f"{warning}: no token for {duration(for_s)} {waits}: vLLM hangs")
            case events.GoesOn():
                say("tokens come again")
            case events.StaysCold(reason):
                why = f"so the first request is slow: {in_one_line(reason)}"
                say(f"{warning}: the warm-up request failed, {why}")
            case events.Joined(rank, nodes, elapsed_s):
                say(f"node {rank} of {nodes} joined in {duration(elapsed_s)}")
                say("node 0 answers the requests; Ctrl-C stops this node and all others")
            case events.Stopping(signal, grace_s):
                self._stopping = True
                self._line.erase()
                say(
                    f"stopping: sent {signal}, waiting up to {duration(grace_s)}; "
                    "press Ctrl-C again to stop "
                    "immediately"
                )
            case events.Stopped(took_s, killed):
                self._line.erase()
                if self._stopping:
                    say(f"stopped in {duration(took_s)}{' by SIGKILL' if killed else ''}")

    def _ready(self, event: events.Ready) -> None:
        say(f"ready in {duration(event.elapsed_s)}")
        out(ready_block(event, self._plan, log_path=self._log_path))
        say(self._end)

    def failed(self, error: SpecserveError) -> None:
        """Leave the line empty: whoever ends the program says what is wrong."""
        del error
        self._line.erase()


class StartView(TextView):
    """The same for a server that is stopped again soon: nobody needs its address."""

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        if isinstance(event, events.Stopping):
            say("stopping the server")
        else:
            super().__call__(event)

    def _ready(self, event: events.Ready) -> None:
        say(f"ready in {duration(event.elapsed_s)}")


class JsonView:
    """A JSON object on stderr for each `event`; where the server is, as one on stdout."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._log_path = ""

    def __call__(self, event: events.Event) -> None:
        """Write it; the half-second news are left out."""
        if isinstance(event, events.PhaseGoesOn):
            return
        if isinstance(event, events.Started):
            self._log_path = event.log_path
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        self._write({"event": name, **json_values(event)})
        if isinstance(event, events.Ready):
            out(json.dumps(_ready_json(event, self._plan, log_path=self._log_path)))

    def failed(self, error: SpecserveError) -> None:
        """The error as an event of its own."""
        fields: dict[str, object] = {
            "message": error.message,
            "hint": error.hint,
            "causes": error.causes,
        }
        if isinstance(error, LaunchError):
            fields |= {"phase": error.phase, "log_path": error.log_path}
        self._write({"event": "failed", **fields, "exit_code": error.exit_code})

    def _write(self, fields: dict[str, object]) -> None:
        say(json.dumps({"version": VERSION, "name": self._plan.name, **fields}))


def ready_block(ready: events.Ready, plan: LaunchPlan, *, log_path: str) -> str:
    """Where the server is and what it holds, one thing per line."""
    note = model_note(Path(str(plan.engine_kwargs.get("model"))))
    lines = [
        ("url", in_one_line(f"{ready.url}/v1")),
        ("model", in_one_line(ready.model)),
        *([("note", in_one_line(note))] if note else []),
        ("memory", memory_line(ready.figures, resident_bytes=ready.resident_bytes)),
        ("KV cache", kv_cache_line(ready.figures)),
        ("log", in_one_line(log_path)),
        *_requests(ready, key=plan.api_key_env),
    ]
    return "".join(f"{label:<9}{text}\n" for label, text in lines)


def _ready_json(ready: events.Ready, plan: LaunchPlan, *, log_path: str) -> dict[str, Any]:
    """The same for scripts; figures that vLLM did not report are null."""
    return {
        "version": VERSION,
        "name": plan.name,
        "url": f"{ready.url}/v1",
        "model": ready.model,
        **fields_of(plan, "fingerprint", "vllm"),
        **fields_of(ready, "figures", "resident_bytes"),
        "log": log_path,
        "api_key_env": plan.api_key_env,
    }


def memory_line(figures: MemoryFigures, *, resident_bytes: int | None) -> str:
    """Weights, KV cache and graphs as vLLM reported them, and the host memory of its processes."""
    weights = f"weights {_gib(figures.weights_gib)} per GPU"
    if figures.weights_gib is None:
        on_disk = figures.checkpoint_gib
        weights = "weights unknown" if on_disk is None else f"weights {_gib(on_disk)} on disk"
    parts = [weights, f"KV cache {_gib(figures.kv_cache_gib)}"]
    if figures.graphs_gib is not None:
        parts.append(f"CUDA graphs {_gib(figures.graphs_gib)}")
    if resident_bytes is not None:
        parts.append(f"host memory {_gib(resident_bytes / GIB)}")
    return ", ".join(parts)


def kv_cache_line(figures: MemoryFigures) -> str:
    """How many tokens fit, and how many requests of full length that is."""
    if figures.kv_cache_tokens is None:
        return "size unknown"
    line = f"{figures.kv_cache_tokens:,} tokens"
    if figures.max_concurrency is not None:
        length = f"{figures.max_model_len:,} tokens" if figures.max_model_len else "full length"
        line += f": room for {figures.max_concurrency:.1f} requests of {length}"
    return line


def _gib(gib: float | None) -> str:
    if gib is None:
        return "unknown"
    return f"{gib:.2f} GiB" if gib < 10 else f"{gib:.1f} GiB"


def _requests(ready: events.Ready, *, key: str | None) -> Iterator[tuple[str, str]]:
    """Lines to type, by curl and this program. `key`: the variable with the server's API key."""
    url = shlex.quote(ready.url)
    body = json.dumps({"model": ready.model, "prompt": _PROMPT, "max_tokens": 48, "temperature": 0})
    authorization = f' -H "Authorization: Bearer ${key}"' if key else ""
    head = f"curl -s {url}/v1/completions{authorization} -H 'Content-Type: application/json'"
    yield "curl", f"{head} -d {shlex.quote(body)}"
    called = sys.argv[0]
    found, program = shutil.which("specserve"), "specserve"
    if Path(called).name == program and (
        found is None or os.path.realpath(found) != os.path.realpath(called)
    ):
        program = shlex.quote(called)
    variable = f"VLLM_API_KEY=${key} " if key and key != "VLLM_API_KEY" else ""
    # `--server` also on port 8000: without it, `ask` takes a detached server first
    yield (
        "ask",
        f"{variable}{program} ask '{_PROMPT}' --max-tokens 48 --temperature 0 --server {url}",
    )


def print_last(path: Path, *, lines: int) -> LogTail:
    """Print the last lines of a log, or all of it for 0; what comes later is to be read."""
    try:
        open_regular(path).close()
    except OSError as error:
        raise FactError(f"the log cannot be read: {path}: {error.strerror}") from error
    tail, kept = LogTail(path), deque[bytes](maxlen=lines)
    while new := tail.read_raw():
        kept.extend(new)
        print_lines(new if not lines else [])
    print_lines(list(kept))
    return tail


def print_lines(lines: list[bytes]) -> None:
    """Lines of a log to stdout, control characters made visible: it holds text from outside."""
    if lines:
        shown = [escaped(line.decode(errors="replace").rstrip("\r")) for line in lines]
        if os.environ.get("GITHUB_ACTIONS") == "true":
            shown = [_WORKFLOW_COMMAND.sub(_visible, line) for line in shown]
        out("\n".join(shown))


def _visible(command: re.Match[str]) -> str:
    return f"\\x{ord(command[0].strip()[0]):02x}{command[0].strip()[1:]}"
