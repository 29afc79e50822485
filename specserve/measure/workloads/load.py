"""Workloads by name or file: those that are shipped, and a user's own prompts or log, each line checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from specserve.errors import FactError, UsageError, did_you_mean, quoted
from specserve.measure.bench.result import WorkloadInfo
from specserve.measure.workloads.shipped import SHIPPED, random_words, texts
from specserve.measure.workloads.workload import (
    CountPrompt,
    Message,
    Prompt,
    ShippedPrompt,
    Workload,
    fitted,
    kept_whole,
)
from specserve.serve.batch import parse_object

_Item = TypeVar("_Item", ShippedPrompt, Prompt)
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
        found, left_out = read(path)
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
    """Eight prompts of the workload's kind, none of which is measured; its own first ones if none of these fits."""
    cap = _cap(None, max_model_len)
    drafts = [_capped(item, cap) for item in texts("warmup", as_chat=workload.is_chat)]
    measured = {item.content for item in workload.prompts}
    prompts, remarks = fitted(drafts, max_model_len=max_model_len)
    disjoint = tuple(item for item in prompts if item.content not in measured)
    return Workload("warm-up", disjoint or workload.prompts[:8], "specserve", None, remarks)


def info(workload: Workload) -> WorkloadInfo:
    """What the result says about it."""
    return WorkloadInfo(workload.name, len(workload.prompts), workload.source, workload.sha256, workload.note)


def _shipped(name: str, *, chat: bool) -> list[ShippedPrompt]:
    if name in SHIPPED:
        return SHIPPED[name](as_chat=chat)
    count = int(name.partition(":")[2] or _WORDS)
    if not 1 <= count <= _MOST_WORDS:
        raise UsageError(f"`{name}`: the number of words must be 1 to {_MOST_WORDS}")
    return random_words(count, as_chat=chat)


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


LARGEST_BYTES = 512 * 2**20
_Line = tuple[int, bytes]
"""Its number, from 1, and what it holds."""


def _lines(path: Path) -> list[_Line]:
    """The lines that are not blank. Raises FactError if the file cannot be read."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise FactError(
                f"`{path}` is larger than {LARGEST_BYTES // 2**20} MiB",
                hint="use a part of it, such as `head -n 10000 FILE`",
            )
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FactError(f"cannot read `{path}`: {reason}") from error
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


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
        raise ValueError(f"`{name}` must be non-empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"`{name}` contains an unpaired surrogate, which is not valid Unicode text"
        ) from None
    return value


_KEYS = ("prompt", "messages", "id", "max_tokens")
_BODIES = ("body", "request", "request_body")
"""Where a log keeps what the client sent."""
_HINT = 'a line is {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'
_SHOWN = 3


def read(path: Path, *, may_mix: bool = False) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The prompts of a file, and what was left out of a log. Raises FactError with file and line.

    `may_mix`: texts and chats may stand in one file.
    """
    lines = _lines(path)
    if not lines:
        raise FactError(f"`{path}` has no lines", hint=_HINT)
    try:
        is_log = any(key in parse_object(lines[0][1]) for key in ("model", *_BODIES))
    except ValueError:
        is_log = False
    return _of_log(lines, path) if is_log else (_of_prompts(lines, path, may_mix=may_mix), ())


def _of_prompts(lines: Sequence[_Line], path: Path, *, may_mix: bool) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    lines_of: dict[str, int] = {}
    for number, line in lines:
        try:
            prompt = _prompt(parse_object(line), number)
            if prompt.id in lines_of:
                raise ValueError(f"the id {quoted(prompt.id)} is already used in line {lines_of[prompt.id]}")
            if not may_mix and prompts and (prompt.messages is None) != (prompts[0].messages is None):
                raise ValueError("`prompt` and `messages` cannot be mixed in one file")
        except ValueError as error:
            raise FactError(f"{path}:{number}: {error}", hint=_HINT) from None
        lines_of[prompt.id] = number
        prompts.append(prompt)
    return tuple(prompts)


def _prompt(body: Mapping[str, Any], number: int) -> Prompt:
    unknown = next((key for key in body if key not in _KEYS), None)
    if unknown is not None:
        guess = did_you_mean(unknown, _KEYS)
        raise ValueError(f"unknown key {quoted(unknown)}" + (f": did you mean `{guess}`?" if guess else ""))
    identity = body.get("id", f"line-{number}")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise ValueError("`id` must be a string or a whole number")
    return request(body, identity=str(identity), max_tokens=body.get("max_tokens"))


def _of_log(lines: Sequence[_Line], path: Path) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """The requests that can be sent again; the kind that most have, if a log has both."""
    prompts: list[Prompt] = []
    wrong: list[str] = []
    for number, line in lines:
        try:
            prompts.append(_logged(parse_object(line), number))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if not prompts:
        none = f"`{path}` has no request that can be sent again"
        raise FactError(none, causes=tuple(wrong[:_SHOWN]), hint=_HINT)
    chats = [item for item in prompts if item.messages is not None]
    kept = chats if 2 * len(chats) >= len(prompts) else [item for item in prompts if item.messages is None]
    left_out = f"of {len(lines)} lines of the log were left out"
    remarks = []
    if wrong:
        more = "; …" if len(wrong) > _SHOWN else ""
        remarks.append(f"{len(wrong)} {left_out}: {'; '.join(wrong[:_SHOWN])}{more}")
    if others := len(prompts) - len(kept):
        remarks.append(f"{others} {left_out}: the other kind of request (chat, completion)")
    return tuple(kept), tuple(remarks)


def _logged(line: Mapping[str, Any], number: int) -> Prompt:
    """What the client sent, and nothing else of the line: no header, no user, no answer is read."""
    body: object = next((line[key] for key in _BODIES if key in line), line)
    if isinstance(body, str):
        body = parse_object(body.encode(errors="surrogatepass"))
    if not isinstance(body, Mapping):
        raise ValueError("the body of the request is not a JSON object")
    # clients write null for what they do not set
    limits = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    limit = next((value for value in limits if value is not None), None)
    prompt = request(body, identity=f"line-{number}", max_tokens=limit)
    heat = body.get("temperature")
    if not isinstance(heat, int | float) or isinstance(heat, bool) or not 0 <= heat <= 2:
        return prompt
    return dataclasses.replace(prompt, temperature=float(heat))
