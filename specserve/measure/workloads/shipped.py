"""The workloads that ship with specserve, as chats and as completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from specserve.measure.workloads import patterns
from specserve.measure.workloads.workload import Draft, Message

PROMPTS = 25
_PROSE = 8
"""Of the 25 texts to be edited, so many are prose; the rest is code."""
_LONG_ENTRIES = 68
"""About 6,000 tokens with a usual vocabulary."""
_LONG_MODULES = 8

Content = str | tuple[Message, ...]


def chat(*, as_chat: bool) -> list[Draft]:
    """Questions and requests of everyday; every fifth has two turns before it."""
    return [
        _whole(row["id"], 256, _turns(row["turns"]) if as_chat else _dialogue(row["turns"]))
        for row in _rows("chat")
    ]


def code(*, as_chat: bool) -> list[Draft]:
    """Functions and classes to be written: 20 in Python, five in other languages."""
    drafts = []
    for row in _rows("code"):
        ask = f"Complete this code. Answer with the code alone.\n\n```{row['language']}\n{row['text']}```"
        drafts.append(_whole(row["id"], 256, _user(ask) if as_chat else row["text"]))
    return drafts


def creative(*, as_chat: bool) -> list[Draft]:
    """Stories, poems and speeches to be made up: hardly a word is in the prompt."""
    return [
        _whole(row["id"], 384, _user(row["ask"]) if as_chat else row["opening"]) for row in _rows("creative")
    ]


def summarise(*, as_chat: bool) -> list[Draft]:
    """Texts that are given back with small changes: most of the answer is a copy of the prompt."""
    prose = [
        _edit(
            f"summarise-{index + 1:02d}",
            [f"{row['title']}\n", *(f"{part}\n" for part in row["paragraphs"])],
            ask="Proofread this text. Return the whole text, with nothing changed but mistakes.",
            heading="The same text, proofread:",
            as_chat=as_chat,
        )
        for index, row in enumerate(_rows("documents"))
    ]
    modules = [
        _edit(
            f"summarise-{index + 1:02d}",
            patterns.module_blocks(index),
            ask="Add type hints to this module. Return the whole module, with nothing else changed.",
            heading="# the same module, with type hints",
            as_chat=as_chat,
        )
        for index in range(_PROSE, PROMPTS)
    ]
    return prose + modules


def structured(*, as_chat: bool) -> list[Draft]:
    """Short texts whose facts are asked for as JSON."""
    drafts = []
    for index in range(PROMPTS):
        text, keys = patterns.KINDS[index % len(patterns.KINDS)](index)
        ask = f"Write the facts of this text as JSON with the keys {keys}. Answer with the JSON alone.\n\n{text}"
        completion = f"{text}\n\nThe same as JSON with the keys {keys}:\n\n{{\n"
        drafts.append(_whole(f"json-{index + 1:02d}", 256, _user(ask) if as_chat else completion))
    return drafts


def long(*, as_chat: bool) -> list[Draft]:
    """Long documents with a question behind them: 17 logbooks, 8 programs. Shortened if the context is small."""
    return [
        (_program if index % 3 == 2 else _logbook)(f"long-{index + 1:02d}", index, as_chat)
        for index in range(PROMPTS)
    ]


def warm_up(*, as_chat: bool) -> list[Draft]:
    """Prompts of no workload, to be sent before anything is measured."""
    return [
        _whole(row["id"], 64, _user(row["chat"]) if as_chat else row["completion"]) for row in _rows("warmup")
    ]


SHIPPED: Mapping[str, Callable[..., list[Draft]]] = {
    "chat": chat,
    "code": code,
    "summarise": summarise,
    "json": structured,
    "creative": creative,
    "long": long,
}


def _logbook(identity: str, seed: int, as_chat: bool) -> Draft:
    head, ask = patterns.title(seed), patterns.question(seed)
    days = [patterns.entry(seed, day) for day in range(1, _LONG_ENTRIES + 1)]

    def render(kept: int) -> Content:
        document = "\n\n".join([head, *days[:kept]])
        return _user(f"{document}\n\n---\n\n{ask}") if as_chat else f"{document}\n\nQuestion: {ask}\nAnswer:"

    return Draft(identity, 256, len(days), render)


def _program(identity: str, seed: int, as_chat: bool) -> Draft:
    blocks = patterns.many_blocks(seed, modules=_LONG_MODULES)

    def render(kept: int) -> Content:
        program = "\n".join(blocks[:kept])
        if as_chat:
            return _user(f"```python\n{program}```\n\nWrite unit tests for the last class of this program.")
        return f"{program}\n    def __repr__(self):\n"

    return Draft(identity, 256, len(blocks), render)


def _edit(identity: str, blocks: list[str], *, ask: str, heading: str, as_chat: bool) -> Draft:
    """The text, and as a completion its first third once more: what follows is the rest of it."""

    def render(kept: int) -> Content:
        text = "\n".join(blocks[:kept])
        if as_chat:
            return _user(f"{ask}\n\n{text}")
        lines = text.splitlines(keepends=True)
        return f"{text}\n\n{heading}\n\n{''.join(lines[: max(1, len(lines) // 3)])}"

    return Draft(identity, 384, len(blocks), render)


def _whole(identity: str, max_tokens: int, content: Content) -> Draft:
    return Draft(identity, max_tokens, 1, lambda _: content)


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _turns(texts: list[str]) -> tuple[Message, ...]:
    return tuple(
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(texts)
    )


def _dialogue(texts: list[str]) -> str:
    parts = [f"{'Answer' if index % 2 else 'Question'}: {text}" for index, text in enumerate(texts)]
    return "\n\n".join([*parts, "Answer:"])


def _rows(name: str) -> list[dict[str, Any]]:
    text = (files("specserve.measure.workloads") / "texts" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
