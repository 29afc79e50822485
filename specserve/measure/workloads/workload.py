"""What a workload is, and whether its prompts fit a context."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, str]
_SPECIAL_TOKENS, _TEMPLATE_TOKENS = 8, 64
"""What may stand around the text of a completion, and around messages and a system text."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: either `text` (a completion) or `messages` (a chat)."""

    id: str
    max_tokens: int
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    temperature: float | None = None
    """Of the request in a log; what is sent again has the temperature of the measurement."""

    @property
    def body(self) -> dict[str, Any]:
        """The field of a request that holds it: `prompt` or `messages`."""
        if self.messages is None:
            return {"prompt": self.text}
        return {"messages": [dict(part) for part in self.messages]}

    @property
    def content(self) -> str:
        """All its text, to be counted."""
        if self.text is not None:
            return self.text
        return "\n".join(part["content"] for part in self.messages or ())

    def fits(self, max_model_len: int | None) -> bool:
        """Whether a context holds it with its answer.

        Two bytes are taken for a token: more tokens than most texts have.
        """
        around = _SPECIAL_TOKENS if self.messages is None else _TEMPLATE_TOKENS
        tokens = (len(self.content.encode()) + 1) // 2 + around + self.max_tokens
        return max_model_len is None or tokens <= max_model_len


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind; all are completions or all are chats."""

    name: str
    prompts: tuple[Prompt, ...]
    source: str
    remarks: tuple[str, ...] = ()

    @property
    def is_chat(self) -> bool:
        """Whether its prompts are messages, for vLLM's chat endpoint."""
        return bool(self.prompts) and self.prompts[0].messages is not None

    @property
    def sha256(self) -> str:
        """Over what is sent, in its order; ids and names do not count."""
        sent = [
            {"text": item.text, "messages": list(item.messages or ()), "max": item.max_tokens}
            for item in self.prompts
        ]
        return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
