"""The workloads that ship: texts and what is asked about them, the same on every machine."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from specserve.measure.workloads.workload import Prompt, room

SHIPPED = {
    "chat": ["chat"],
    "code": ["code"],
    "summarise": ["documents", "modules"],
    "json": ["json"],
    "creative": ["creative"],
    "long": ["long"],
}
"""The files of each; their first lines have the form of a prompt, as chat and as completion."""
WARM_UP = "warm-up"


def shipped_prompts(
    name: str, is_chat: bool, max_tokens: int | None, max_model_len: int | None
) -> tuple[list[Prompt], list[str]]:
    """The prompts, each with as many of its blocks of text as fit (estimated), and what was cut.

    Without `max_tokens`, an answer gets a quarter of the context at most."""
    cap = max_tokens or (max(16, max_model_len // 4) if max_model_len else None)
    prompts: list[Prompt] = []
    shortened = left_out = 0
    for file in SHIPPED.get(name, [name]):
        form, rows = _read(file)
        limit = min(cap or form["max_tokens"], form["max_tokens"])
        for row in rows:
            for kept in range(len(row["blocks"]), 0, -1):
                prompt = _prompt(row, kept, form=form, is_chat=is_chat, limit=limit)
                if room(prompt, max_model_len) >= limit:
                    prompts.append(prompt)
                    shortened += kept < len(row["blocks"])
                    break
            else:
                left_out += 1
    fit = f"to fit max_model_len {max_model_len}"
    remarks = [f"{shortened} of {len(prompts)} prompts were shortened {fit}"] if shortened else []
    if left_out:
        remarks.append(f"{left_out} prompts were left out {fit}")
    return prompts, remarks


def _prompt(
    row: dict[str, Any], kept: int, *, form: dict[str, Any], is_chat: bool, limit: int
) -> Prompt:
    text = "\n\n".join(row["blocks"][:kept])
    lines = text.splitlines(keepends=True)
    begun = "".join(lines[: max(1, len(lines) // 3)])
    content = form["chat" if is_chat else "completion"].format(
        **{**row, "text": text, "begun": begun}
    )
    if not is_chat:
        return Prompt(row["id"], limit, text=content)
    turns, roles = row.get("turns", [content]), ("user", "assistant")
    messages = tuple({"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns))
    return Prompt(row["id"], limit, messages=messages)


def _read(file: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The form and the rows, each with its `blocks`: of one archive, each row begins elsewhere."""
    path = files("specserve.measure.workloads") / "texts" / f"{file}.jsonl"
    form, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    others = [row for other in form.get("archive", []) for row in _read(other)[1]]
    archive = [block for row in others for block in row["blocks"]]
    for at, row in enumerate(rows):
        start = at * len(archive) // len(rows)
        row.setdefault("blocks", archive[start:] + archive[:start] or [""])
    return form, rows
