"""A set of prompts, as it is sent. Knows no server and no file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Message = Mapping[str, str]
"""`role` and `content`, text only."""
CountTokens = Callable[[str], int]
"""How many tokens of the target a text is."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: either `text` (a completion) or `messages` (a chat)."""

    id: str
    max_tokens: int
    text: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def content(self) -> str:
        """All its text, to be counted."""
        return (
            self.text if self.text is not None else "\n".join(part["content"] for part in self.messages or ())
        )


CountPrompt = Callable[[Prompt], int | None]
"""How many tokens the target gets of a whole request, with all that stands around it; None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind; all are completions or all are chats."""

    name: str
    prompts: tuple[Prompt, ...]
    source: str
    """`specserve`, or the file."""
    note: str | None = None
    """Why its acceptance is not to be believed, else None."""
    remarks: tuple[str, ...] = ()
    """What was left out or cut, for the reader of the result."""

    @property
    def is_chat(self) -> bool:
        """Whether its prompts are messages, for vLLM's chat endpoint."""
        return bool(self.prompts) and self.prompts[0].messages is not None

    @property
    def sha256(self) -> str:
        """Over what is sent, in its order; ids and names do not count."""
        return digest(self.prompts)


def digest(prompts: Iterable[Prompt]) -> str:
    """sha256, in hex."""
    sent = [
        {"text": item.text, "messages": [dict(part) for part in item.messages or ()], "max": item.max_tokens}
        for item in prompts
    ]
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


def estimated_tokens(text: str) -> int:
    """How many tokens a text is at most, roughly, where nobody counts them: two bytes each, more than most have."""
    return (len(text.encode()) + 1) // 2
