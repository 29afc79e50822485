"""The JSON lines of `generate`: a request read, a record written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Protocol

from specserve.plan.launchplan import Json
from specserve.serve.offline import Finished, Refused, Request


class Engine(Protocol):
    """What answers requests: the offline engine."""

    def run(self, requests: Iterable[Request]) -> Iterator[Finished | Refused]:
        """The answers, in any order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the input that is not blank. `index` counts these from 0, `line` all lines from 1."""

    index: int
    line: int
    id: Json
    request: Request | None
    error: str | None


def entries(data: bytes) -> Iterator[Entry]:
    """Read JSON lines; a line that is no request becomes an Entry with an error, and stops nothing."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity: Json = None
    try:
        body = _parse(raw)
        identity = body.pop("id", None)
        return Entry(index, line, identity, _request(body, identity, index=index), None)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Entry(index, line, identity, None, reason)


def _parse(raw: bytes) -> dict[str, Json]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    try:
        body = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key `{next(name for name in names if names.count(name) > 1)}`")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no JSON number")


def _request(body: dict[str, Json], identity: Json, *, index: int) -> Request:
    if not (identity is None or isinstance(identity, str | int | float)) or isinstance(identity, bool):
        raise ValueError("`id` must be a string or a number")
    if ("prompt" in body) == ("messages" in body):
        raise ValueError(
            "one of `prompt` and `messages` is needed" + (", not both" if "prompt" in body else "")
        )
    prompt = _prompt(body.pop("prompt")) if "prompt" in body else None
    messages = _messages(body.pop("messages")) if "messages" in body else None
    try:
        json.dumps([prompt, messages, body], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair: not valid Unicode text") from None
    return Request(index=index, prompt=prompt, messages=messages, params=body)


def _prompt(value: Json) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        tokens = [token for token in value if isinstance(token, int) and not isinstance(token, bool)]
        if value and len(tokens) == len(value):
            return tokens
    raise ValueError("`prompt` must be text, or a list of token ids")


def _messages(value: Json) -> list[dict[str, Json]]:
    messages = [message for message in value if isinstance(message, dict)] if isinstance(value, list) else []
    if not isinstance(value, list) or not value or len(messages) < len(value):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise ValueError("every message needs a `role`")
    return messages


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
        }
    return {**head, "error": f"line {entry.line}: {entry.error if answer is None else answer.error}"}


def encoded(body: dict[str, Json]) -> bytes:
    """One JSON line. ASCII only: no reader splits it at U+2028, no terminal takes orders from it."""
    return json.dumps(body).encode() + b"\n"


def answered(
    engine: Engine | None, todo: Iterable[Entry]
) -> Iterator[tuple[Entry, Finished | Refused | None]]:
    """Every entry once, as soon as its answer is known; the answer is None if the line is no request.

    Without requests no engine is needed.
    """
    waiting: dict[int, Entry] = {}
    bad: list[Entry] = []

    def requests() -> Iterator[Request]:
        for entry in todo:
            if entry.request is None:
                bad.append(entry)
            else:
                waiting[entry.index] = entry
                yield entry.request

    for answer in engine.run(requests()) if engine is not None else map(_no_engine, requests()):
        yield waiting.pop(answer.index), answer
        while bad:
            yield bad.pop(), None
    while bad:
        yield bad.pop(), None


def _no_engine(request: Request) -> NoReturn:
    raise AssertionError(f"request {request.index} without an engine")


def in_order(
    answers: Iterable[tuple[Entry, Finished | Refused | None]],
) -> Iterator[tuple[Entry, Finished | Refused | None]]:
    """The same in the order of the input: each as soon as everything before it is known."""
    held: dict[int, tuple[Entry, Finished | Refused | None]] = {}
    upcoming = 0
    for entry, answer in answers:
        held[entry.index] = (entry, answer)
        while upcoming in held:
            yield held.pop(upcoming)
            upcoming += 1
