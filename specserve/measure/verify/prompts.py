"""The prompts that are asked: a few of various kinds that ship with specserve, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text, or the messages of a chat."""

    name: str
    text: str
    messages: tuple[dict[str, Any], ...] = ()


def left_out(path: str) -> int:
    """Lines of a file of prompts beyond those that are used."""
    with Path(path).open("rb") as stream:
        lines = sum(bool(line.strip()) for line in stream.read(_MOST_BYTES).split(b"\n"))
    return max(0, lines - MOST_PROMPTS)


def prompts(path: str | None = None) -> tuple[Prompt, ...]:
    """The first 64 prompts of a file of lines `{id?, prompt | messages}`; without a file those that ship.

    Raises FactError for what cannot be read.
    """
    file = Path(path) if path is not None else SHIPPED
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        raise FactError(f"cannot read `{file}`: {error.strerror}") from error
    found = tuple(_read(data, str(file)))
    if not found:
        raise FactError(f"`{file}` has no prompt", hint='a line is `{"prompt": "…"}` or `{"messages": […]}`')
    return found


def _read(data: bytes, file: str) -> Iterator[Prompt]:
    count = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        if count == MOST_PROMPTS:
            return
        try:
            yield _prompt(json.loads(line), number)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise FactError(
                f"{file}:{number} is no prompt", hint='a line is `{"prompt": "…"}` or `{"messages": […]}`'
            ) from None
        count += 1


def _prompt(content: Any, number: int) -> Prompt:
    name = str(content.get("id", f"line {number}"))
    if "messages" in content:
        messages = tuple(dict(message) for message in content["messages"])
        if not messages:
            raise ValueError
        return Prompt(name, "\n\n".join(str(message.get("content") or "") for message in messages), messages)
    text = content["prompt"]
    if not isinstance(text, str) or not text:
        raise ValueError
    return Prompt(name, text)
