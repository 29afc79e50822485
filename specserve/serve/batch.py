"""One run of `generate`, from the lines of its input to the records of its output."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

from specserve.errors import Interrupted, LaunchError, quoted
from specserve.metrics.counters import Acceptance
from specserve.plan.launchplan import Json, LaunchPlan
from specserve.serve.journal import Output, Stdout
from specserve.serve.logs import default_log
from specserve.serve.offline import Finished, OfflineEngine, OfflineRequest, Refused
from specserve.serve.signals import StopRequest, stop_on_signals


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the input that is not blank. `index` counts these from 0, `line` all lines from 1."""

    index: int
    line: int
    id: Json
    request: OfflineRequest | None
    error: str | None


def entries(data: bytes) -> Iterator[Entry]:
    """Read JSON lines; a line that is not a request becomes an Entry with an error, and stops nothing."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity: Json = None
    try:
        body = parse_object(raw)
        identity = body.pop("id", None)
        return Entry(index, line, identity, _request(body, identity, index=index), None)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Entry(index, line, identity, None, reason)


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of one line. Raises ValueError with the reason in words."""
    try:
        text = raw.decode("utf-8")
        body = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {quoted(next(name for name in names if names.count(name) > 1))}")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is not a JSON number")


def _request(body: dict[str, Json], identity: Json, *, index: int) -> OfflineRequest:
    if not (identity is None or isinstance(identity, str | int | float)) or isinstance(identity, bool):
        raise ValueError("`id` must be a string or a number")
    is_chat = "messages" in body
    if is_chat == ("prompt" in body):
        raise ValueError("one of `prompt` and `messages` is needed" + (", not both" if is_chat else ""))
    prompt, messages = body.pop("prompt", None), body.pop("messages", None)
    if is_chat:
        _check_messages(messages)
    elif not (isinstance(prompt, str) or _is_token_ids(prompt)):
        raise ValueError("`prompt` must be text, or a list of token ids")
    try:
        json.dumps([prompt, messages, body], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("unpaired surrogate: not valid Unicode text") from None
    return OfflineRequest(index, cast("Any", prompt), cast("Any", messages), body)


def _is_token_ids(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _check_messages(value: Json) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    if not all(isinstance(message.get("role"), str) for message in cast("list[dict[str, Json]]", value)):
        raise ValueError("every message needs a `role`")


def record(entry: Entry, answer: Finished | Refused | None) -> dict[str, Json]:
    """The output line of one entry: its answer, or its error with the number of its line."""
    head: dict[str, Json] = {"id": entry.id, "index": entry.index}
    if isinstance(answer, Finished):
        return {
            **head,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            **_tokens(answer),
        }
    return {**head, "error": f"line {entry.line}: {entry.error if answer is None else answer.error}"}


def _tokens(answer: Finished) -> dict[str, Json]:
    if answer.logprobs is None:
        return {}
    named = ("prompt_token_ids", answer.prompt_token_ids), ("token_ids", answer.token_ids)
    return cast("dict[str, Json]", {**dict(named), "logprobs": answer.logprobs})


class GenerateView(Protocol):
    """What shows how far a run is."""

    def tick(self) -> None:
        """Called often."""

    def generating(self) -> float:
        """The engine is ready; returns the seconds that this took."""

    def advance(self, completion_tokens: int) -> None:
        """One more line is done."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A complete run. `errors`: what could not be done, in the order of the lines."""

    errors: tuple[str, ...]
    completion_tokens: int = 0
    took_s: float | None = None
    """From the moment when the engine was ready; None if no line needed one."""
    acceptance: Acceptance | None = None
    """None without speculation."""


def run(
    plan: LaunchPlan,
    *,
    data: bytes,
    output: Output | Stdout,
    progress: GenerateView,
    say: Callable[[str], None],
) -> Generated:
    """Answer every line of `data` that the output does not hold yet.

    Raises LaunchError if the engine fails, and Interrupted on a signal; what is written stays.
    """
    done = frozenset(output.done)
    total = sum(1 for _ in entries(data))
    needs_engine = any(entry.request and entry.index not in done for entry in entries(data))
    errors, tokens, began_s = dict(output.errors), 0, time.monotonic()
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals())

        def tick() -> None:
            _refuse_stop(stop, output, total=total)
            progress.tick()

        engine = None
        try:
            if needs_engine:
                log_path = default_log(f"{plan.name}-generate")
                say(f"starting the engine, log: {log_path}")
                engine = stack.enter_context(OfflineEngine(plan, log_path=log_path, on_tick=tick))
                version = engine.start()
                say(f"the engine is ready after {progress.generating():.1f} s (vLLM {version})")
                began_s = time.monotonic()
            for entry, answer in answered(engine, (e for e in entries(data) if e.index not in done)):
                body = record(entry, answer)
                output.write(body)
                new_tokens = answer.completion_tokens if isinstance(answer, Finished) else 0
                tokens += new_tokens
                progress.advance(new_tokens)
                if "error" in body:
                    errors[entry.index] = str(body["error"])
                _refuse_stop(stop, output, total=total)
            output.complete()
            took_s = time.monotonic() - began_s
        except LaunchError:
            if isinstance(output, Output):
                say(f"{output.written} of {total} lines {output.place}")
            raise
    failed = tuple(errors[index] for index in sorted(errors))
    if engine is None:
        return Generated(failed)
    return Generated(failed, tokens, took_s, engine.acceptance)


def _refuse_stop(stop: StopRequest, output: Output | Stdout, *, total: int) -> None:
    """Raises Interrupted if a signal came: between two answers, never inside a write or a start of a process."""
    if stop.count:
        message = f"stopped: {output.written} of {total} lines {output.place}"
        raise Interrupted(message, signal_number=stop.signal or signal.SIGTERM)


def answered(
    engine: OfflineEngine | None, todo: Iterable[Entry]
) -> Iterator[tuple[Entry, Finished | Refused | None]]:
    """Every entry once, as soon as its answer is known; the answer is None if the line is not a request.

    `engine` None: none of them is a request.
    """
    waiting: dict[int, Entry] = {}
    bad: list[Entry] = []

    def requests() -> Iterator[OfflineRequest]:
        for entry in todo:
            if entry.request is None:
                bad.append(entry)
            else:
                waiting[entry.index] = entry
                yield entry.request

    if engine is None:
        bad.extend(todo)
    else:
        for answer in engine.run(requests()):
            yield waiting.pop(answer.index), answer
            while bad:
                yield bad.pop(), None
    while bad:
        yield bad.pop(), None
