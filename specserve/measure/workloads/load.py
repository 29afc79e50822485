"""A workload by its name or from a file, made to fit the server that it is for. Sends nothing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from specserve.errors import UsageError
from specserve.measure.bench.result import WorkloadInfo
from specserve.measure.workloads import userfile
from specserve.measure.workloads.patterns import DEFAULT_WORDS, LARGEST_WORDS, NOTE, random_words
from specserve.measure.workloads.shipped import SHIPPED, warm_up
from specserve.measure.workloads.workload import (
    CountPrompt,
    Draft,
    Prompt,
    Room,
    Workload,
    fitted,
    kept_whole,
)
from specserve.profile.codes import did_you_mean, quoted

RANDOM = "random"
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
    UsageError for an unknown name, FactError (with file and line) for a bad file and where no prompt fits.
    """
    if name_or_path in SHIPPED or re.fullmatch(rf"{RANDOM}(:\d{{1,7}})?", name_or_path):
        drafts = _drafts(name_or_path, chat=chat)[:limit]
        cap = _cap(max_tokens, max_model_len)
        prompts, remarks = fitted([_capped(item, cap) for item in drafts], max_model_len=max_model_len)
        source, note = "specserve", NOTE if name_or_path not in SHIPPED else None
        name = name_or_path
    else:
        path = _file(name_or_path)
        found, left_out = userfile.read(path)
        found, spread = _spread(found, limit=limit)
        capped = [
            dataclasses.replace(item, max_tokens=min(item.max_tokens, max_tokens or item.max_tokens))
            for item in found
        ]
        prompts, remarks = kept_whole(capped, room=Room(max_model_len, count_prompt))
        remarks = (*left_out, *spread, *remarks)
        source, note, name = str(path), None, name_of(path)
    if not prompts:
        how = " (estimated)" if count_prompt is None else ""
        raise UsageError(
            f"no prompt of {quoted(name_or_path)} fits max_model_len {max_model_len}{how}",
            hint="take a larger `target.max_model_len`, or a smaller `--max-tokens`",
        )
    return Workload(name, prompts, source, note, remarks)


def load_warm_up(workload: Workload, *, max_model_len: int | None = None) -> Workload:
    """Eight prompts of the workload's kind, none of which is measured."""
    cap = _cap(None, max_model_len)
    drafts = [_capped(item, cap) for item in warm_up(as_chat=workload.is_chat)]
    measured = {item.content for item in workload.prompts}
    prompts, remarks = fitted(drafts, max_model_len=max_model_len)
    disjoint = tuple(item for item in prompts if item.content not in measured)
    return Workload("warm-up", disjoint, "specserve", None, remarks)


def info(workload: Workload) -> WorkloadInfo:
    """What the result says about it."""
    return WorkloadInfo(workload.name, len(workload.prompts), workload.source, workload.sha256, workload.note)


def _drafts(name: str, *, chat: bool) -> list[Draft]:
    if name in SHIPPED:
        return SHIPPED[name](as_chat=chat)
    words = int(name.partition(":")[2] or DEFAULT_WORDS)
    if not 1 <= words <= LARGEST_WORDS:
        raise UsageError(f"`{name}`: the number of words must be 1 to {LARGEST_WORDS}")
    return random_words(words, as_chat=chat)


def _cap(max_tokens: int | None, max_model_len: int | None) -> int | None:
    """Where the context is small a quarter of it is for the answer, if nobody said otherwise."""
    if max_tokens is not None or max_model_len is None:
        return max_tokens
    return max(16, max_model_len // 4)


def _capped(draft: Draft, cap: int | None) -> Draft:
    return draft if cap is None else dataclasses.replace(draft, max_tokens=min(draft.max_tokens, cap))


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
    raise UsageError(f"there is no workload and no file {quoted(name_or_path)}", hint=hint)


def _spread(prompts: tuple[Prompt, ...], *, limit: int | None) -> tuple[tuple[Prompt, ...], tuple[str, ...]]:
    """At most so many, evenly spread over the file, so that the order of a day's traffic stays."""
    most = limit or _LOG_LIMIT
    if len(prompts) <= most:
        return prompts, ()
    kept = tuple(prompts[index * len(prompts) // most] for index in range(most))
    return kept, (f"{most} of {len(prompts)} prompts were taken, evenly spread",)


def name_of(path: Path) -> str:
    """What the workload of a file is called: its stem, as names of profiles are made."""
    return re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "prompts"
