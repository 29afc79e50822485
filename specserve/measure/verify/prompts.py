"""The prompts that a verification sends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64
_MOST_BYTES = 8 << 20
_HINT = 'a line is `{"prompt": "…"}` or `{"messages": […]}`'


@dataclass(frozen=True, slots=True)
class VerifyPrompt:
    """A text, or the messages of a chat."""

    name: str
    text: str
    messages: tuple[dict[str, Any], ...] = ()


def load_prompts(path: str | None = None) -> tuple[tuple[VerifyPrompt, ...], int]:
    """The first 64 prompts of a file of lines `{id?, prompt | messages}`, and how many lines are beyond them.

    Without a file, those that ship. Raises FactError for what cannot be read.
    """
    file = Path(path) if path is not None else SHIPPED
    try:
        with file.open("rb") as stream:
            lines = stream.read(_MOST_BYTES).split(b"\n")
    except OSError as error:
        raise FactError(f"cannot read `{file}`: {error.strerror}") from error
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise FactError(f"`{file}` has no prompt", hint=_HINT)
    prompts = []
    for number, line in rows[:MOST_PROMPTS]:
        try:
            prompts.append(_prompt(json.loads(line), number))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise FactError(f"{file}:{number} is no prompt", hint=_HINT) from None
    return tuple(prompts), len(rows) - len(prompts)


def _prompt(content: Any, number: int) -> VerifyPrompt:
    name = str(content.get("id", f"line {number}"))
    if "messages" in content:
        messages = tuple(dict(message) for message in content["messages"])
        if not messages:
            raise ValueError
        return VerifyPrompt(name, "\n\n".join(str(item.get("content") or "") for item in messages), messages)
    text = content["prompt"]
    if not isinstance(text, str) or not text:
        raise ValueError
    return VerifyPrompt(name, text)
