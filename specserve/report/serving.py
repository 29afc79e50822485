"""A server's life on the terminal, or as JSON lines for fleets. Does not know how to run one."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from specserve.errors import LaunchError, SpecserveError
from specserve.facts.folder import model_note
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import in_one_line, is_terminal, out, say, styled
from specserve.serve import events
from specserve.serve.figures import GIB, Figures
from specserve.serve.phases import Phase

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
        self._stream = stream or sys.stderr
        self._live = is_terminal(self._stream)
        self._still_said_s = 0.0
        self._log_path = ""
        self._stopping = False

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        match event:
            case events.Started():
                self._log_path = event.log_path
                say(f"starting vLLM {self._plan.vllm} (pid {event.pid}), log: {in_one_line(event.log_path)}")
            case events.PhaseStarted():
                self._still_said_s = 0.0
                self._rewrite(event.phase, 0.0)
            case events.PhaseGoesOn():
                self._go_on(event)
            case events.PhaseEnded():
                self._erase()
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
                self._erase()
                grace = duration(event.grace_s)
                say(f"stopping: sent {event.signal}, waiting up to {grace}; Ctrl-C again ends it at once")
            case events.Stopped():
                self._erase()
                if self._stopping:
                    say(f"stopped in {duration(event.took_s)}{' by SIGKILL' if event.killed else ''}")

    def failed(self, error: SpecserveError) -> None:
        """The error itself is told by whoever ends the program."""
        self._erase()

    def _go_on(self, event: events.PhaseGoesOn) -> None:
        self._rewrite(event.phase, event.took_s)
        if not self._live and event.took_s - self._still_said_s >= _STILL_EVERY_S:
            self._still_said_s = event.took_s
            say(f"  {event.phase} … {duration(event.took_s)} so far")

    def _rewrite(self, phase: Phase, took_s: float) -> None:
        if self._live:
            self._stream.write(f"\r\x1b[K  {phase} … {duration(took_s)}")
            self._stream.flush()

    def _erase(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")


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
        self._write({"event": name.lstrip("_"), **dataclasses.asdict(event)})
        if isinstance(event, events.Ready):
            out(json.dumps(ready_json(event, self._plan, log_path=self._log_path)))

    def failed(self, error: SpecserveError) -> None:
        """The error as an event of its own."""
        fields: dict[str, object] = {"message": error.message, "hint": error.hint, "causes": error.causes}
        if isinstance(error, LaunchError):
            fields |= {"phase": error.phase, "log_path": error.log_path}
        self._write({"event": "failed", **fields, "exit_code": error.exit_code})

    def _write(self, fields: dict[str, object]) -> None:
        say(json.dumps({"version": 1, "name": self._plan.name, **fields}))


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
    """The same for scripts, `version` 1; figures that vLLM did not report are null."""
    return {
        "version": 1,
        "name": plan.name,
        "url": f"{ready.url}/v1",
        "model": ready.model,
        "fingerprint": plan.fingerprint,
        "vllm": plan.vllm,
        "figures": dataclasses.asdict(ready.figures),
        "resident_bytes": ready.resident_bytes,
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


def duration(seconds: float) -> str:
    """`3.1s`, `41s`, `2m05s`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


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
