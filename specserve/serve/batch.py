"""`generate`: its requests (`bench` reads such lines too), its engine, its output."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specserve.errors import FactError, Interrupted, LaunchError, UsageError
from specserve.memory import starts
from specserve.plan.launchplan import Json, LaunchPlan
from specserve.serve.causes import stalled
from specserve.serve.logs import default_log, end_of, parse
from specserve.serve.process import JsonChild, resolve_env, stop_on_signals

Record = dict[str, Any]
_BODIES = ("body", "request", "request_body")
"""Where a batch or a log keeps what the client sent."""
_WITHOUT_EFFECT = frozenset(
    ("model", "user", "stream", "stream_options", "metadata", "store", "service_tier")
)
"""What clients send beside the prompt that changes no answer here: the model is the profile's."""
CHILD = (sys.executable, "-P", "-m", "specserve.engine.offline")
"""-P: a folder named vllm in the working directory must not be taken for the library."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that is not blank. `index` counts these from 0, `line` all lines from 1."""

    index: int
    line: int
    id: Json = None
    request: Mapping[str, Json] | None = None
    """`prompt` (text or token ids) or `messages`, and `params` by vLLM's names."""
    error: str | None = None
    id_key: str = "id"
    """`custom_id` in a line of OpenAI's batch API."""
    is_logged: bool = False
    """Whether it is a body as a client sends it, alone or within a line of a batch or a log."""

    def record(self, answer: Mapping[str, Any]) -> Record:
        """The output line: the answer, or its `error` with the number of the line."""
        content = {"error": f"line {self.line}: {answer['error']}"} if "error" in answer else answer
        return {self.id_key: self.id, "index": self.index, **content}


def entries(data: bytes) -> Iterator[Entry]:
    """Read JSON lines; one that is no request becomes an Entry with an error."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity, id_key, is_logged, request, error = None, "id", False, None, None
    try:
        body = _parsed(raw)
        id_key = "custom_id" if "custom_id" in body else "id"
        identity = body.pop(id_key, None)
        wrapper = next((key for key in _BODIES if key in body), None)
        is_logged = wrapper is not None or "model" in body
        if wrapper is not None:
            body = body[wrapper]
            body = _parsed(body.encode(errors="surrogatepass")) if isinstance(body, str) else body
        if isinstance(identity, bool) or not isinstance(identity, str | int | float | None):
            raise ValueError(f"`{id_key}` must be a string or a number")
        request = _request(body)
    except (ValueError, RecursionError) as caught:
        error = "nested too deeply" if isinstance(caught, RecursionError) else str(caught)
    return Entry(index, line, identity, request, error, id_key, is_logged)


def _parsed(raw: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError with the reason in words."""
    try:
        text = raw.decode("utf-8")
        body = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise ValueError(f"invalid JSON at column {error.colno}: {reason}") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON number")


def _request(body: Any) -> dict[str, Json]:
    """`prompt` or `messages`, and `params`; clients write null for what they do not set."""
    if not isinstance(body, dict):
        raise ValueError("the body of the request is not a JSON object")
    given = {name: body.pop(name) for name in ("prompt", "messages") if name in body}
    if len(given) != 1:
        both = ", not both" if given else ""
        raise ValueError(f"one of `prompt` and `messages` is needed{both}")
    ((name, value),) = given.items()
    items: list[Any] = value if isinstance(value, list) else []
    if name == "messages":
        if not items or not all(isinstance(each, dict) and "role" in each for each in items):
            raise ValueError("`messages` must be a list of objects with `role` and `content`")
    elif not (isinstance(value, str) or (items and all(type(token) is int for token in items))):
        raise ValueError("`prompt` must be text, or a list of token ids")
    params = {k: v for k, v in body.items() if k not in _WITHOUT_EFFECT and v is not None}
    if "max_completion_tokens" in params:
        params["max_tokens"] = params.pop("max_completion_tokens")
    if isinstance(params.get("logprobs"), bool):  # a chat's: whether, and how many
        most = params.pop("top_logprobs", 0)
        if params.pop("logprobs"):
            params["logprobs"] = most
    request = {**given, "params": params}
    try:
        json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("unpaired surrogate: not valid Unicode text") from None
    return request


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the database `OUT.jsonl.partial`.

    It holds a record per finished line of the input, failed ones included, and survives kill -9. It
    is resumed for the same `origin` only. Raises UsageError if a file is in the way.
    """

    def __init__(self, path: Path, *, origin: str) -> None:
        if not path.name:
            raise UsageError(f"`{path}` is not the name of a file", hint="use another `-o`")
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        if path.exists() or self.partial.is_symlink():
            raise UsageError(f"`{path}` exists already", hint="delete it, or use another `-o`")
        with self._changing(), contextlib.ExitStack() as undo:
            self._base = sqlite3.connect(self.partial, isolation_level=None, timeout=0)
            undo.callback(self._base.close)
            # a killed process loses nothing without the syncing, and the lock ends with it
            for statement in (
                "PRAGMA locking_mode = EXCLUSIVE",
                "PRAGMA synchronous = OFF",
                "BEGIN EXCLUSIVE",  # else a second run resumes too, and neither can write
                "CREATE TABLE IF NOT EXISTS done (line INTEGER PRIMARY KEY, record TEXT)",
                "CREATE TABLE IF NOT EXISTS made_from (origin TEXT)",
            ):
                self._base.execute(statement)
            known = self._base.execute("SELECT origin FROM made_from").fetchone()
            if known is None:
                self._base.execute("INSERT INTO made_from VALUES (?)", (origin,))
            elif known != (origin,):
                raise UsageError(
                    f"`{self.partial}` was made from another input, profile or other options",
                    hint="delete it to start over, or use another `-o`",
                )
            self._base.execute("COMMIT")
            self.done = {line for (line,) in self._base.execute("SELECT line FROM done")}
            undo.pop_all()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if "locked" in str(error):
                raise UsageError(f"another `generate` is writing `{self.partial}`") from None
            hint = f"finished lines are in `{self.partial}`; the same command resumes there"
            hint = hint if self.partial.exists() else "`-o` needs a folder that can be written to"
            raise FactError(f"cannot write `{self._path}`: {error}", hint=hint) from error

    def write(self, body: Record) -> None:
        """Keep the record of one finished line. Raises FactError if the disk is full."""
        # of ASCII only: no reader splits it at U+2028, no terminal obeys it
        with self._changing():
            row = (body["index"], json.dumps(body))
            self._base.execute("INSERT INTO done VALUES (?, ?)", row)
        self.done.add(body["index"])

    def complete(self) -> tuple[str, ...]:
        """Write OUT.jsonl in the order of the input; returns the errors in it.

        Raises FactError if the disk is full, UsageError if the file is there by now.
        """
        ordered, errors = self._path.with_name(f"{self._path.name}.ordered"), []
        with self._changing():
            ordered.unlink(missing_ok=True)
            with ordered.open("x", encoding="ascii") as file:
                for (record,) in self._base.execute("SELECT record FROM done ORDER BY line"):
                    file.write(f"{record}\n")
                    errors += [error] if (error := json.loads(record).get("error")) else []
                file.flush()
                os.fsync(file.fileno())
            if self._path.exists():  # somebody wrote it meanwhile
                ordered.unlink()
                hint = f"move it away; the same command then completes `{self.partial}`"
                raise UsageError(f"`{self._path}` exists already", hint=hint)
            ordered.replace(self._path)
            self.partial.unlink()
        return tuple(errors)

    def kept(self, total: int) -> str:
        """How much of it is there, and where, as a sentence."""
        there = f"{len(self.done)} of {total} lines are in `{self.partial}`"
        return f"{there}; the same command resumes there"

    def close(self) -> None:
        """Close it; the next run resumes it unless it is complete."""
        self._base.close()


def generate(
    plan: LaunchPlan,
    *,
    data: bytes,
    path: Path,
    show: Callable[[str], None],
    say: Callable[[str], None],
) -> tuple[str, ...]:
    """Answer every line of `data` that the output does not hold yet; `show` tells how far it is.

    Returns the errors of lines that could not be done. Raises UsageError if a file is in the way,
    LaunchError if the engine fails, and Interrupted on a signal; what is written stays.
    """
    lines = list(entries(data))
    # all that the answers depend on
    engine = json.dumps(dict(plan.engine_kwargs), sort_keys=True)
    origin = hashlib.sha256(f"{plan.fingerprint}\n{plan.vllm}\n{engine}\n".encode() + data)
    with (
        contextlib.closing(Output(path, origin=origin.hexdigest())) as output,
        stop_on_signals() as stop,
    ):
        todo = {entry.index: entry for entry in lines if entry.index not in output.done}
        state = "starting the engine"
        if output.done:
            say(f"resuming: {len(output.done)} of {len(lines)} lines are already done")

        def tick() -> None:
            """Ends the run between two answers if a signal came, never inside a write."""
            if stop.count:
                code = 128 + (stop.signal or signal.SIGTERM)
                raise Interrupted(f"stopped: {output.kept(len(lines))}", exit_code=code)
            show(f"{state}: {len(output.done)} of {len(lines)} lines")

        asked: list[Record] = []
        for entry in todo.values():
            if entry.request is not None:
                asked.append({"index": entry.index, **entry.request})
            else:
                output.write(entry.record({"error": entry.error}))
                tick()
        if asked:
            log_path = default_log(f"{plan.name}-generate")
            say(f"starting the engine, log: {log_path}")
            # no server, no key
            env = {name: value for name, value in plan.env.items() if name != "VLLM_API_KEY"}
            child = JsonChild(CHILD, env=resolve_env(env), log_path=log_path)
            tokens = 0
            try:
                for message in _messages(child, plan, asked, tick):
                    event, state = message.pop("event"), "generating"
                    if event == "ready":
                        began_s = child.elapsed_s
                        say(f"the engine is ready after {began_s:.1f} s (vLLM {message['vllm']})")
                        say(str(_kept(plan, child)))
                    elif event != "done":
                        tokens += message.get("completion_tokens", 0)
                        output.write(todo[message["index"]].record(message))
                        tick()
                took_s = child.elapsed_s - began_s
                say(f"{tokens} tokens in {took_s:.1f} s: {tokens / took_s:.1f} tokens/s")
            except LaunchError as error:
                if state == "starting the engine":
                    _kept(plan, child, cause="; ".join(error.causes) or error.message)
                say(output.kept(len(lines)))
                raise
            finally:
                child.close()  # at once: vLLM's own end takes seconds
        return output.complete()


def _kept(plan: LaunchPlan, child: JsonChild, cause: str = "") -> starts.Start:
    logged = dict[str, float]()
    with contextlib.suppress(OSError):
        for line in parse(end_of(child.log_path)):
            starts.note(logged, line.text)
    said: dict[str, Any] = {"log_path": str(child.log_path), "took_s": child.elapsed_s}
    return starts.keep(plan, logged, cause=cause, command="generate", **said)


def _messages(
    child: JsonChild, plan: LaunchPlan, asked: list[Record], on_tick: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Send the requests; the messages of the engine, up to `done`. Raises LaunchError."""
    child.tell({"engine_kwargs": dict(plan.engine_kwargs)})
    for each in (*asked, {"end": True}):
        child.tell(each)
    phase, event = "starting the engine", ""
    while event != "done":
        try:
            message = child.receive(0.2)
        except queue.Empty:
            on_tick()
            # once it is ready, silence may be long
            if not event and (limit_s := child.stalled_s(plan.stall_timeout_s)) is not None:
                raise stalled(child.log_path, phase, limit_s=limit_s) from None
            continue
        if message is None or message["event"] == "failed":
            child.wait()  # the log is complete once the process is gone
            raise child.death(phase, said=str((message or {}).get("error", "")))
        phase, event = "generating", message["event"]
        yield message
