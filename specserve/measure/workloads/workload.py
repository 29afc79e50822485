"""What a workload is, and how its prompts are made to fit a context."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Message = Mapping[str, str]
"""`role` and `content`, text only."""


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
        return (
            self.text if self.text is not None else "\n".join(part["content"] for part in self.messages or ())
        )

    def line(self, identity: str | None = None, *, max_tokens: int | None = None) -> dict[str, object]:
        """Return it as a line of a user's file or of `generate`. `max_tokens`: at most so many."""
        tokens = self.max_tokens if max_tokens is None else min(self.max_tokens, max_tokens)
        said: dict[str, object] = {"prompt": self.text}
        if self.messages is not None:
            said = {"messages": [dict(part) for part in self.messages]}
        return {"id": self.id if identity is None else identity, **said, "max_tokens": tokens}


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


def answer_tokens(
    prompt: Prompt, *, max_model_len: int | None, count_prompt: CountPrompt | None = None
) -> tuple[int, bool]:
    """How many tokens are left for the answer, at most its `max_tokens`, and whether that is estimated."""
    if max_model_len is None:
        return prompt.max_tokens, False
    free = max_model_len - (_SPECIAL_TOKENS if prompt.messages is None else _TEMPLATE_TOKENS)
    # no tokenizer makes more tokens than bytes
    if len(prompt.content.encode()) < free - prompt.max_tokens:
        return prompt.max_tokens, False
    counted = count_prompt(prompt) if count_prompt is not None else None
    left = free - estimated_tokens(prompt.content) if counted is None else max_model_len - counted
    return min(prompt.max_tokens, left), counted is None


@dataclass(frozen=True, slots=True)
class ShippedPrompt:
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
    shipped: Iterable[ShippedPrompt], *, max_model_len: int | None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts, each as long as it fits with its whole answer (estimated), and remarks on what was cut."""
    prompts: list[Prompt] = []
    shortened = left_out = 0

    def is_too_long(each: ShippedPrompt, kept: int) -> bool:
        return answer_tokens(each.prompt(kept), max_model_len=max_model_len)[0] < each.max_tokens

    for each in shipped:
        kept = each.blocks
        if is_too_long(each, kept):
            kept = bisect_left(range(1, each.blocks), True, key=partial(is_too_long, each))
            shortened, left_out = shortened + (kept > 0), left_out + (kept == 0)
        if kept:
            prompts.append(each.prompt(kept))
    remarks = []
    if shortened:
        remarks.append(
            f"{shortened} of {len(prompts)} prompts were shortened to fit max_model_len {max_model_len}"
        )
    return tuple(prompts), (*remarks, *_left_out(len(prompts), [True] * left_out, max_model_len))


def kept_whole(
    prompts: Sequence[Prompt], *, max_model_len: int | None, count_prompt: CountPrompt | None = None
) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """A user's prompts that fit, their texts untouched; an answer may get fewer tokens, and both are remarked."""
    kept: list[Prompt] = []
    shorter: list[bool] = []
    left_out: list[bool] = []
    for prompt in prompts:
        tokens, is_estimated = answer_tokens(prompt, max_model_len=max_model_len, count_prompt=count_prompt)
        if tokens < min(prompt.max_tokens, _LEAST_ANSWER):
            left_out.append(is_estimated)
            continue
        kept.append(dataclasses.replace(prompt, max_tokens=tokens))
        if tokens < prompt.max_tokens:
            shorter.append(is_estimated)
    remarks = _left_out(len(kept), left_out, max_model_len)
    if shorter:
        how = " (estimated)" if any(shorter) else ""
        fewer = f"{len(shorter)} of {len(kept)} answers got fewer max_tokens"
        remarks.append(f"{fewer} to fit max_model_len {max_model_len}{how}")
    return tuple(kept), tuple(remarks)


def _left_out(kept: int, left_out: Sequence[bool], max_model_len: int | None) -> list[str]:
    """`left_out`: of each prompt that does not fit, whether its length is estimated."""
    if not left_out:
        return []
    how = f"longer than max_model_len {max_model_len} allows"
    how = f"they may be {how} (estimated)" if any(left_out) else how
    return [f"{len(left_out)} of {kept + len(left_out)} prompts were left out: {how}"]
