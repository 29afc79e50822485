"""Workloads by name or file: texts that ship, and a user's prompts or log, each line checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError, quoted
from specserve.models.facts import read_regular
from specserve.serve.batch import Entry, entries

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


SHIPPED = {
    "chat": ["chat"],
    "code": ["code"],
    "summarise": ["documents", "modules"],
    "json": ["json"],
    "creative": ["creative"],
}
"""The files of each; their first lines have the form of a prompt, as chat and as completion."""
MAX_PROMPTS = 200
"""So many prompts are taken, evenly spread, if no limit is given."""
MAX_TOKENS = 256
"""Of an answer, if a line does not say it."""
_MAX_BYTES = 1 << 30
_KEYS = ("prompt", "messages", "id", "max_tokens", "temperature")
_HINT = 'a line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'


def load(
    name_or_path: str,
    *,
    chat: bool = True,
    max_model_len: int | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
) -> Workload:
    """The prompts of a workload that ships, or of a file, that fit a context.

    `chat`: whether the target has a chat template; if not, shipped prompts come as completions. A
    user's file says itself what its prompts are. `max_tokens` caps every answer. Raises UsageError
    for an unknown name and if no prompt fits, FactError (with file and line) for a bad file.
    """
    if name_or_path in SHIPPED:
        name, source, remarks = name_or_path, "specserve", list[str]()
        some = (_shipped(file, chat, max_tokens, max_model_len) for file in SHIPPED[name])
        found = [prompt for prompts in some for prompt in prompts]
    else:
        path = Path(name_or_path)
        if not os.path.exists(name_or_path):  # noqa: PTH110  # a name may be too long for a path
            known = f"workloads are {', '.join(SHIPPED)}, or a file of JSON lines"
            text = f"{quoted(name_or_path)} is neither a workload nor a file"
            raise UsageError(text, hint=known)
        name, source = name_of(path), str(path)
        every, remarks = read(path)
        found = [
            replace(each, max_tokens=min(each.max_tokens, max_tokens or each.max_tokens))
            for each in every
            if (each.text is None) is (every[0].text is None)
        ]
        if others := len(every) - len(found):
            remarks.append(f"{others} of {len(every)} prompts are not of the first one's kind")
    fitting = [each for each in found if each.fits(max_model_len)]
    if left_out := len(found) - len(fitting):
        told = f"{left_out} of {len(found)} prompts were left out to fit max_model_len"
        remarks.append(f"{told} {max_model_len}")
    if not fitting:
        raise UsageError(
            f"no prompt of {quoted(name_or_path)} fits max_model_len {max_model_len}",
            hint="raise `target.max_model_len`, or lower `--max-tokens`",
        )
    most = min(limit or MAX_PROMPTS, len(fitting))
    if limit is None and most < len(fitting):
        remarks.append(f"{most} of {len(fitting)} prompts were taken, evenly spread")
    prompts = tuple(fitting[index * len(fitting) // most] for index in range(most))
    return Workload(name, prompts, source, tuple(remarks))


def load_warm_up(workload: Workload, *, max_model_len: int | None = None) -> Workload:
    """Eight prompts that no workload has, of its kind; its own if none of them fits."""
    shipped = _shipped("warm-up", workload.is_chat, None, max_model_len)
    found = tuple(each for each in shipped if each.fits(max_model_len))
    return Workload("warm-up", found or workload.prompts[:8], "specserve")


def _shipped(
    name: str, is_chat: bool, max_tokens: int | None, max_model_len: int | None
) -> Iterator[Prompt]:
    """The prompts of one file.

    Without `max_tokens`, an answer gets a quarter of the context at most.
    """
    path = files("specserve.measure") / "texts" / f"{name}.jsonl"
    form, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    cap = max_tokens or (max(16, max_model_len // 4) if max_model_len else form["max_tokens"])
    limit = min(cap, form["max_tokens"])
    for row in rows:
        text = "\n\n".join(row.get("blocks", []))
        lines = text.splitlines(keepends=True)
        begun = "".join(lines[: max(1, len(lines) // 3)])
        fields = {**row, "text": text, "begun": begun}
        content = form["chat" if is_chat else "completion"].format(**fields)
        if is_chat:
            turns, roles = row.get("turns", [content]), ("user", "assistant")
            said = ({"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns))
            yield Prompt(row["id"], limit, messages=tuple(said))
        else:
            yield Prompt(row["id"], limit, text=content)


def name_of(path: Path) -> str:
    """What the workload of a file is called: its stem, as names of profiles are made."""
    return re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "prompts"


def read(path: Path) -> tuple[list[Prompt], list[str]]:
    """The prompts of a file, and what was left out. Raises FactError with file and line.

    Of a log (its first line holds a request as a client sends it) lines that cannot be sent again
    are left out.
    """
    lines = list(entries(read_regular(path, limit_bytes=_MAX_BYTES)))
    prompts: dict[str, Prompt] = {}
    wrong: list[str] = []
    for entry in lines:
        try:
            prompt = _prompt(entry)
            if prompt.id in prompts:
                raise ValueError(f"the id {quoted(prompt.id)} is used twice")
            prompts[prompt.id] = prompt
        except ValueError as error:
            if not lines[0].is_logged:
                raise FactError(f"{path}:{entry.line}: {error}", hint=_HINT) from None
            wrong.append(f"line {entry.line}: {error}")
    if not prompts:
        raise FactError(f"`{path}` has no request to send", causes=tuple(wrong[:3]), hint=_HINT)
    told = f"{len(wrong)} of {len(lines)} lines of the log were left out"
    return list(prompts.values()), [f"{told}: {wrong[0]}"] if wrong else []


def _prompt(entry: Entry) -> Prompt:
    """The prompt of one line. Raises ValueError with what is wrong, in words."""
    if entry.request is None:
        raise ValueError(entry.error)
    params: Mapping[str, Any] = entry.request["params"]  # type: ignore[assignment]
    unknown = next((key for key in params if key not in _KEYS), None)
    if unknown is not None and not entry.is_logged:
        raise ValueError(f"unknown key {quoted(unknown)}: known are {', '.join(_KEYS)}")
    limit = params.get("max_tokens", MAX_TOKENS)
    if type(limit) is not int or not 1 <= limit <= 1_000_000:
        raise ValueError("`max_tokens` must be a whole number above 0")
    identity = f"line-{entry.line}" if entry.id is None else str(entry.id)
    prompt = Prompt(identity, limit, temperature=params.get("temperature"))
    if "prompt" in entry.request:
        return replace(prompt, text=_text(entry.request["prompt"], "prompt"))
    messages: Any = entry.request["messages"]
    said = [
        {"role": each["role"], "content": _text(each.get("content"), f"messages[{at}].content")}
        for at, each in enumerate(messages)
    ]
    return replace(prompt, messages=tuple(said))


def _text(value: Any, name: str) -> str:
    if isinstance(value, list):  # OpenAI's parts
        texts = [part.get("text") if isinstance(part, dict) else None for part in value]
        value = None if None in texts else "\n".join(map(str, texts))
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{name}` must be text that is not empty")
    return value
