"""What a workload is, and how its prompts are made to fit a context."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

Message = Mapping[str, str]
"""`role` and `content`, text only."""


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
"""How many tokens the target gets of a whole request, with all that stands around it; None if nobody can tell."""


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
    """How many tokens a text is at most, roughly, if nobody counts them: two bytes each, more than most have."""
    return (len(text.encode()) + 1) // 2


_SPECIAL_TOKENS = 8
"""What a tokenizer may put around a completion's prompt."""
_TEMPLATE_TOKENS = 64
"""What a chat template may put around messages; its default system text included."""
_LEAST_ANSWER = 16
"""A prompt that leaves less room for its answer is left out."""


@dataclass(frozen=True, slots=True)
class Left:
    """Tokens that are left for an answer, at most its `max_tokens`; negative if the prompt is too long."""

    tokens: int
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """How long prompt and answer may be together."""

    max_model_len: int | None
    count_prompt: CountPrompt | None = None

    def left(self, prompt: Prompt) -> Left:
        """What is left for the answer."""
        if self.max_model_len is None:
            return Left(prompt.max_tokens)
        around = _SPECIAL_TOKENS if prompt.messages is None else _TEMPLATE_TOKENS
        free = self.max_model_len - around
        # no tokenizer makes more tokens than bytes
        if len(prompt.content.encode()) < free - prompt.max_tokens:
            return Left(prompt.max_tokens)
        counted = self.count_prompt(prompt) if self.count_prompt is not None else None
        if counted is not None:
            return Left(min(prompt.max_tokens, self.max_model_len - counted))
        return Left(min(prompt.max_tokens, free - estimated_tokens(prompt.content)), is_estimated=True)


@dataclass(frozen=True, slots=True)
class Draft:
    """A prompt of ours whose text can be shortened: `render` takes how many of its `blocks` are kept."""

    id: str
    max_tokens: int
    blocks: int
    render: Callable[[int], str | tuple[Message, ...]]

    def prompt(self, kept: int) -> Prompt:
        """The prompt with its first blocks."""
        content = self.render(kept)
        if isinstance(content, str):
            return Prompt(self.id, self.max_tokens, text=content)
        return Prompt(self.id, self.max_tokens, messages=content)


def fitted(
    drafts: Iterable[Draft], *, max_model_len: int | None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts, each as long as it fits with its whole answer (estimated); and what was cut, in words."""
    room = Room(max_model_len)
    prompts: list[Prompt] = []
    shortened = left_out = 0

    def is_too_long(draft: Draft, kept: int) -> bool:
        return room.left(draft.prompt(kept)).tokens < draft.max_tokens

    for draft in drafts:
        kept = draft.blocks
        if is_too_long(draft, kept):
            kept = bisect_left(range(1, draft.blocks), True, key=partial(is_too_long, draft))
            shortened, left_out = shortened + (kept > 0), left_out + (kept == 0)
        if kept:
            prompts.append(draft.prompt(kept))
    return tuple(prompts), _remarks(len(prompts), shortened, left_out, room, is_estimated=True)


def _remarks(count: int, shortened: int, left_out: int, room: Room, *, is_estimated: bool) -> tuple[str, ...]:
    remarks = []
    if shortened:
        remarks.append(
            f"{shortened} of {count} prompts were shortened to fit max_model_len {room.max_model_len}"
        )
    if left_out:
        remarks.append(
            f"{left_out} of {count + left_out} prompts were left out: "
            + (
                f"they may be longer than max_model_len {room.max_model_len} allows (estimated)"
                if is_estimated
                else f"longer than max_model_len {room.max_model_len} allows"
            )
        )
    return tuple(remarks)


def kept_whole(prompts: Sequence[Prompt], *, room: Room) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """A user's prompts that fit, their texts untouched; an answer may get fewer tokens, and both are noted."""
    kept: list[Prompt] = []
    shorter: list[Left] = []
    left_out: list[Left] = []
    for prompt in prompts:
        left = room.left(prompt)
        if left.tokens >= prompt.max_tokens:
            kept.append(prompt)
        elif left.tokens >= _LEAST_ANSWER:
            shorter.append(left)
            kept.append(dataclasses.replace(prompt, max_tokens=left.tokens))
        else:
            left_out.append(left)
    remarks = _remarks(len(kept), 0, len(left_out), room, is_estimated=_any_estimated(left_out))
    if shorter:
        how = " (estimated)" if _any_estimated(shorter) else ""
        remarks += (
            f"{len(shorter)} of {len(kept)} answers got fewer max_tokens "
            f"to fit max_model_len {room.max_model_len}{how}",
        )
    return tuple(kept), remarks


def _any_estimated(found: Iterable[Left]) -> bool:
    return any(left.is_estimated for left in found)
