"""A user's own file of prompts: JSON lines, each checked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specserve.errors import FactError
from specserve.measure.workloads.workload import Message, Prompt
from specserve.profile.codes import did_you_mean, quoted

LARGEST_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank; either its object or why it has none."""

    number: int
    body: dict[str, Any] | None
    wrong: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Each line of the file. Raises FactError if it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise FactError(
                f"`{path}` is larger than {LARGEST_BYTES // 2**20} MiB",
                hint="take a part of it: `head -n 10000 FILE`",
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FactError(f"cannot read `{path}`: {reason}") from error
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _line(number, raw)


def parsed(text: str) -> Any:
    """A JSON text's value. Raises ValueError with the reason in words."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise ValueError(f"invalid JSON at column {error.colno}: {reason}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_text(value: str) -> bool:
    """Whether it can be sent: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _line(number: int, raw: bytes) -> Line:
    try:
        body = parsed(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Line(number, None, f"not UTF-8 at byte {error.start + 1}")
    except ValueError as error:
        return Line(number, None, str(error))
    if not isinstance(body, dict):
        return Line(number, None, "not a JSON object")
    return Line(number, body)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {quoted(next(name for name in names if names.count(name) > 1))}")
    return body


_ROLES = ("system", "developer", "user", "assistant", "tool")
DEFAULT_MAX_TOKENS = 256
LARGEST_MAX_TOKENS = 1_000_000


def request(body: Mapping[str, Any], *, identity: str, max_tokens: object) -> Prompt:
    """The prompt of one JSON object. Raises ValueError with what is wrong, in words."""
    if ("prompt" in body) == ("messages" in body):
        raise ValueError(
            "one of `prompt` and `messages` is needed" + (", not both" if "prompt" in body else "")
        )
    limit = _max_tokens(max_tokens)
    if "prompt" in body:
        return Prompt(identity, limit, text=_text(body["prompt"], "prompt"))
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    return Prompt(
        identity, limit, messages=tuple(_message(item, at) for at, item in enumerate(messages, start=1))
    )


def _max_tokens(value: object) -> int:
    if value is None:
        return DEFAULT_MAX_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST_MAX_TOKENS:
        raise ValueError("`max_tokens` must be a whole number above 0")
    return value


def _message(value: object, at: int) -> Message:
    if not isinstance(value, dict) or value.get("role") not in _ROLES:
        raise ValueError(f"message {at} needs a `role`: one of {', '.join(_ROLES)}")
    return {"role": value["role"], "content": _content(value.get("content"), at)}


def _content(value: object, at: int) -> str:
    if isinstance(value, list):  # OpenAI's parts
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            for part in value
        ]
        if not parts or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"message {at} has content other than text")
        value = "\n".join(map(str, parts))
    return _text(value, f"messages[{at - 1}].content")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{name}` must be text that is not empty")
    if not is_text(value):
        raise ValueError(f"`{name}` has half of a surrogate pair: not valid Unicode text")
    return value


_KEYS = ("prompt", "messages", "id", "max_tokens")
_BODIES = ("body", "request", "request_body")
"""Where a log keeps what the client sent."""
_HINT = 'a line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'
_SHOWN = 3


def read(path: Path) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts of a file, and what was left out of a log. Raises FactError with file and line."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise FactError(f"`{path}` has no lines", hint=_HINT)
    every = itertools.chain([first], lines)
    if first.body is not None and _is_log_entry(first.body):
        return _of_log(every, path)
    return _of_prompts(every, path), ()


def _is_log_entry(body: Mapping[str, Any]) -> bool:
    return "model" in body or any(key in body for key in _BODIES)


def _of_prompts(lines: Iterable[Line], path: Path) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    lines_of: dict[str, int] = {}
    for line in lines:
        try:
            prompt = _prompt(line)
            if prompt.id in lines_of:
                raise ValueError(f"the id {quoted(prompt.id)} stands in line {lines_of[prompt.id]} already")
            if prompts and (prompt.messages is None) != (prompts[0].messages is None):
                raise ValueError("`prompt` and `messages` in one file: a workload has one of them")
        except ValueError as error:
            raise FactError(f"{path}:{line.number}: {error}", hint=_HINT) from None
        lines_of[prompt.id] = line.number
        prompts.append(prompt)
    return tuple(prompts)


def _prompt(line: Line) -> Prompt:
    if line.body is None:
        raise ValueError(line.wrong)
    unknown = next((key for key in line.body if key not in _KEYS), None)
    if unknown is not None:
        guess = did_you_mean(unknown, _KEYS)
        raise ValueError(f"unknown key {quoted(unknown)}" + (f": did you mean `{guess}`?" if guess else ""))
    identity = line.body.get("id", f"line-{line.number}")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise ValueError("`id` must be a string or a whole number")
    return request(line.body, identity=str(identity), max_tokens=line.body.get("max_tokens"))


def _of_log(lines: Iterable[Line], path: Path) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The requests that can be sent again; the kind that most have, if a log has both."""
    prompts: list[Prompt] = []
    wrong: list[str] = []
    for line in lines:
        try:
            prompts.append(_logged(line))
        except ValueError as error:
            wrong.append(f"line {line.number}: {error}")
    if not prompts:
        raise FactError(
            f"`{path}` has no request that can be sent again",
            causes=tuple(wrong[:_SHOWN]),
            hint=_HINT,
        )
    chats = [item for item in prompts if item.messages is not None]
    kept = chats if 2 * len(chats) >= len(prompts) else [item for item in prompts if item.messages is None]
    return tuple(kept), tuple(_left_out(wrong, len(prompts) - len(kept), total=len(prompts) + len(wrong)))


def _left_out(wrong: list[str], others: int, *, total: int) -> Iterator[str]:
    if wrong:
        yield f"{len(wrong)} of {total} lines of the log were left out: {'; '.join(wrong[:_SHOWN])}" + (
            "; …" if len(wrong) > _SHOWN else ""
        )
    if others:
        yield f"{others} of {total} lines of the log were left out: the other kind of request (chat, completion)"


def _logged(line: Line) -> Prompt:
    """What the client sent, and nothing else of the line: no header, no user, no answer is read."""
    if line.body is None:
        raise ValueError(line.wrong)
    body: object = next((line.body[key] for key in _BODIES if key in line.body), line.body)
    if isinstance(body, str):
        body = parsed(body)
    if not isinstance(body, dict):
        raise ValueError("the body of the request is no JSON object")
    # clients write null for what they do not set
    limits = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    limit = next((value for value in limits if value is not None), None)
    return request(body, identity=f"line-{line.number}", max_tokens=limit)
