"""Workloads by name or file: those that are shipped, and those of the user."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from specserve.errors import UsageError, did_you_mean, quoted
from specserve.measure.bench.result import WorkloadInfo
from specserve.measure.workloads import patterns, userfile
from specserve.measure.workloads.workload import (
    CountPrompt,
    Message,
    Prompt,
    ShippedPrompt,
    Workload,
    fitted,
    kept_whole,
)

PROMPTS = 25
_LONG_ENTRIES = 68
"""About 6,000 tokens with a usual vocabulary."""
_LONG_MODULES = 8

Content = str | tuple[Message, ...]
_Item = TypeVar("_Item", ShippedPrompt, Prompt)


_CODE = "Complete this code. Answer with the code alone.\n\n```{language}\n{text}```"
_TEXTS: Mapping[str, tuple[int, Callable[[dict[str, Any]], Content], Callable[[dict[str, Any]], str]]] = {
    "chat": (256, lambda row: _turns(row["turns"]), lambda row: _dialogue(row["turns"])),
    "code": (256, lambda row: _user(_CODE.format(**row)), lambda row: str(row["text"])),
    "creative": (384, lambda row: _user(row["ask"]), lambda row: str(row["opening"])),
    "warmup": (64, lambda row: _user(row["chat"]), lambda row: str(row["completion"])),
}
"""By file of rows: the longest answer, a row as a chat and as a completion."""


def _texts(name: str, *, as_chat: bool) -> list[ShippedPrompt]:
    max_tokens, chat, completion = _TEXTS[name]
    form = chat if as_chat else completion
    return [_whole(row["id"], max_tokens, form(row)) for row in _rows(name)]


def summarise(*, as_chat: bool) -> list[ShippedPrompt]:
    """Texts that are given back with small changes: most of the answer is a copy of the prompt."""
    prose = [
        [f"{row['title']}\n", *(f"{part}\n" for part in row["paragraphs"])] for row in _rows("documents")
    ]
    modules = [patterns.module_blocks(index) for index in range(len(prose), PROMPTS)]
    return [
        _edit(index, blocks, index < len(prose), as_chat) for index, blocks in enumerate([*prose, *modules])
    ]


def structured(*, as_chat: bool) -> list[ShippedPrompt]:
    """Short texts whose facts are asked for as JSON."""
    drafts = []
    for index in range(PROMPTS):
        text, keys = patterns.KINDS[index % len(patterns.KINDS)](index)
        ask = f"Write the facts of this text as JSON with the keys {keys}. Answer with the JSON alone.\n\n{text}"
        completion = f"{text}\n\nThe same as JSON with the keys {keys}:\n\n{{\n"
        drafts.append(_whole(f"json-{index + 1:02d}", 256, _user(ask) if as_chat else completion))
    return drafts


def long(*, as_chat: bool) -> list[ShippedPrompt]:
    """Long documents with a question behind them: 17 logbooks, 8 programs. Shortened if the context is small."""
    return [(_program if index % 3 == 2 else _logbook)(index, as_chat) for index in range(PROMPTS)]


SHIPPED: Mapping[str, Callable[..., list[ShippedPrompt]]] = {
    "chat": partial(_texts, "chat"),
    "code": partial(_texts, "code"),
    "summarise": summarise,
    "json": structured,
    "creative": partial(_texts, "creative"),
    "long": long,
}


def _logbook(index: int, as_chat: bool) -> ShippedPrompt:
    head, ask = patterns.title(index), patterns.question(index)
    days = [patterns.entry(index, day) for day in range(1, _LONG_ENTRIES + 1)]

    def text(kept: Sequence[str]) -> str:
        document = "\n\n".join([head, *kept])
        return f"{document}\n\n---\n\n{ask}" if as_chat else f"{document}\n\nQuestion: {ask}\nAnswer:"

    return _cuttable(f"long-{index + 1:02d}", 256, days, text, as_chat)


def _program(index: int, as_chat: bool) -> ShippedPrompt:
    blocks = [block for step in range(_LONG_MODULES) for block in patterns.module_blocks(index + step * 5)]

    def text(kept: Sequence[str]) -> str:
        program = "\n".join(kept)
        if as_chat:
            return f"```python\n{program}```\n\nWrite unit tests for the last class of this program."
        return f"{program}\n    def __repr__(self):\n"

    return _cuttable(f"long-{index + 1:02d}", 256, blocks, text, as_chat)


def _edit(index: int, blocks: list[str], is_prose: bool, as_chat: bool) -> ShippedPrompt:
    """The text, and as a completion its first third once more: what follows is the rest of it."""
    ask, heading = _EDITS[is_prose]

    def text(kept: Sequence[str]) -> str:
        body = "\n".join(kept)
        if as_chat:
            return f"{ask}\n\n{body}"
        lines = body.splitlines(keepends=True)
        return f"{body}\n\n{heading}\n\n{''.join(lines[: max(1, len(lines) // 3)])}"

    return _cuttable(f"summarise-{index + 1:02d}", 384, blocks, text, as_chat)


_EDITS = {
    True: (
        "Proofread this text. Return the whole text, with nothing changed but mistakes.",
        "The same text, proofread:",
    ),
    False: (
        "Add type hints to this module. Return the whole module, with nothing else changed.",
        "# the same module, with type hints",
    ),
}
"""By whether it is prose: what is asked in a chat, and what stands before the copy in a completion."""


_SYLLABLES = (
    "ba", "ko", "ri", "ten", "mu", "sol", "fe", "dar", "li", "on", "gra", "vi", "pe", "uth", "nem", "zo",
)  # fmt: skip


def _random(index: int, count: int, as_chat: bool) -> ShippedPrompt:
    words = [
        "".join(patterns.pick(_SYLLABLES, index, word, at) for at in range(1 + (index + word) % 3))
        for word in range(count)
    ]
    return _cuttable(f"random-{index + 1:02d}", 256, words, " ".join, as_chat)


def _cuttable(
    identity: str, max_tokens: int, blocks: list[str], text: Callable[[Sequence[str]], str], as_chat: bool
) -> ShippedPrompt:
    """A prompt that is shortened by leaving out its last blocks."""

    def render(kept: int) -> Content:
        return _user(text(blocks[:kept])) if as_chat else text(blocks[:kept])

    return ShippedPrompt(identity, max_tokens, len(blocks), render)


def _whole(identity: str, max_tokens: int, content: Content) -> ShippedPrompt:
    return ShippedPrompt(identity, max_tokens, 1, lambda _: content)


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _turns(texts: list[str]) -> tuple[Message, ...]:
    return tuple({"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts))


def _dialogue(texts: list[str]) -> str:
    parts = [f"{('Question', 'Answer')[at % 2]}: {text}" for at, text in enumerate(texts)]
    return "\n\n".join([*parts, "Answer:"])


def _rows(name: str) -> list[dict[str, Any]]:
    text = (files("specserve.measure.workloads") / "texts" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


RANDOM = "random"
NOTE = "random words: its acceptance says nothing about real traffic"
_WORDS, _MOST_WORDS = 256, 1_000_000
_LOG_LIMIT = 200
"""So many prompts of a user's file are taken, evenly spread, if no limit is given."""


def load(
    name_or_path: str,
    *,
    chat: bool = True,
    max_model_len: int | None = None,
    count_prompt: CountPrompt | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
) -> Workload:
    """The prompts of `chat`, `code`, `summarise`, `json`, `creative`, `long`, `random[:WORDS]`, or of a file.

    `chat`: whether the target has a chat template; if it has none, the shipped workloads come as completions. A
    user's file says itself what its prompts are; `count_prompt` tells their lengths, if somebody can (those of the
    shipped ones are always estimated, so that they depend on the context alone). `max_tokens` caps every answer. Raises
    UsageError for an unknown name and if no prompt fits, FactError (with file and line) for a bad file.
    """
    if name_or_path in SHIPPED or re.fullmatch(rf"{RANDOM}(:\d{{1,7}})?", name_or_path):
        drafts = _shipped(name_or_path, chat=chat)[:limit]
        cap = _cap(max_tokens, max_model_len)
        prompts, remarks = fitted([_capped(item, cap) for item in drafts], max_model_len=max_model_len)
        source, note, name = "specserve", None if name_or_path in SHIPPED else NOTE, name_or_path
    else:
        path = _file(name_or_path)
        found, left_out = userfile.read(path)
        most = limit or _LOG_LIMIT
        if len(found) > most:  # evenly spread over the file, so that the order of a day's traffic stays
            left_out = (*left_out, f"{most} of {len(found)} prompts were taken, evenly spread")
            found = tuple(found[index * len(found) // most] for index in range(most))
        capped = [_capped(item, max_tokens) for item in found]
        prompts, remarks = kept_whole(capped, max_model_len=max_model_len, count_prompt=count_prompt)
        remarks = (*left_out, *remarks)
        source, note, name = str(path), None, name_of(path)
    if not prompts:
        how = " (estimated)" if count_prompt is None else ""
        raise UsageError(
            f"no prompt of {quoted(name_or_path)} fits max_model_len {max_model_len}{how}",
            hint="raise `target.max_model_len`, or lower `--max-tokens`",
        )
    return Workload(name, prompts, source, note, remarks)


def load_warm_up(workload: Workload, *, max_model_len: int | None = None) -> Workload:
    """Eight prompts of the workload's kind, none of which is measured."""
    cap = _cap(None, max_model_len)
    drafts = [_capped(item, cap) for item in _texts("warmup", as_chat=workload.is_chat)]
    measured = {item.content for item in workload.prompts}
    prompts, remarks = fitted(drafts, max_model_len=max_model_len)
    disjoint = tuple(item for item in prompts if item.content not in measured)
    return Workload("warm-up", disjoint, "specserve", None, remarks)


def info(workload: Workload) -> WorkloadInfo:
    """What the result says about it."""
    return WorkloadInfo(workload.name, len(workload.prompts), workload.source, workload.sha256, workload.note)


def _shipped(name: str, *, chat: bool) -> list[ShippedPrompt]:
    if name in SHIPPED:
        return SHIPPED[name](as_chat=chat)
    count = int(name.partition(":")[2] or _WORDS)
    if not 1 <= count <= _MOST_WORDS:
        raise UsageError(f"`{name}`: the number of words must be 1 to {_MOST_WORDS}")
    return [_random(index, count, chat) for index in range(PROMPTS)]


def _cap(max_tokens: int | None, max_model_len: int | None) -> int | None:
    """The longest answer: `max_tokens`, else a quarter of the context."""
    if max_tokens is not None or max_model_len is None:
        return max_tokens
    return max(16, max_model_len // 4)


def _capped(item: _Item, cap: int | None) -> _Item:
    return item if cap is None else dataclasses.replace(item, max_tokens=min(item.max_tokens, cap))


def _file(name_or_path: str) -> Path:
    path = Path(name_or_path)
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        return path
    guess = did_you_mean(name_or_path, (*SHIPPED, RANDOM))
    known = ", ".join((*SHIPPED, RANDOM))
    hint = f"did you mean `{guess}`?" if guess else f"workloads are {known}, or a file of JSON lines"
    raise UsageError(f"{quoted(name_or_path)} is neither a workload nor a file", hint=hint)


def name_of(path: Path) -> str:
    """What the workload of a file is called: its stem, as names of profiles are made."""
    return re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "prompts"
