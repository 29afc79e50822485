"""One request of a user's file: its prompt or messages as text, checked. Reads no other key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.measure.workloads.lines import is_text
from specserve.measure.workloads.workload import Message, Prompt

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
