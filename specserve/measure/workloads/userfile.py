"""A user's own prompts: JSON lines of `{prompt | messages, id?, max_tokens?}`, or a log of OpenAI-style requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.measure.workloads.lines import Line, parsed, read_lines
from specserve.measure.workloads.request import request
from specserve.measure.workloads.workload import Prompt
from specserve.profile.problems import did_you_mean, quoted

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
    """The requests that can be sent again; the kind that most have, where a log has both."""
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
    told = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    limit = next((value for value in told if value is not None), None)
    return request(body, identity=f"line-{line.number}", max_tokens=limit)
