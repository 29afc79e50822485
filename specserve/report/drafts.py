"""What `drafts` shows: the published drafts of a target as a table with their sources, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from specserve.hardware.accelerators import Machine
from specserve.measure.drafts import LOADS, FoundDrafts, JudgedDraft
from specserve.measure.tune.candidates import WITHOUT_DRAFT
from specserve.models.drafts import Draft, Reported, as_of
from specserve.report.console import clean, filled
from specserve.report.serializer import json_document, json_values, picked
from specserve.report.text import GIB, NONE, Column, Table, count
from specserve.vllm.speculation import OWN_LAYERS

_COLUMNS = (
    Column("draft", "name"),
    Column("method", "code"),
    Column("K"),
    Column("size"),
    Column("tokens/step"),
    Column("rules", "text"),
    Column("memory", "text"),
    Column("draft GiB"),
    *(Column(f"c={load}") for load in LOADS),
)
_TELLS = (
    "tokens/step is what the authors report, on workloads that differ; `specserve bench` measures yours. "
    "`ngram` and `suffix` need no draft: what they bring depends on how often your texts repeat."
)
_ESTIMATED = (
    "c=N: speedup of decoding with N concurrent requests, estimated from the least to the largest acceptance "
    "that the authors report, on engines that reach less or more of the peak rates; `-`: no acceptance is "
    "published with its K."
)
_ASSUMED = (
    "*: no configuration of this head is known; it is taken for one layer as wide as the target, with 32,000 tokens "
    "of output."
)
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def drafts_text(found: FoundDrafts) -> str:
    """Returns the table, then for each draft what its authors report and where."""
    listed = [each for each in found.drafts if each.draft.method not in WITHOUT_DRAFT]
    target = clean(found.target)
    if listed:
        lines = [f"{count(len(listed), 'draft')} for {target}{_on(found.machine)}, as of {as_of()}:", ""]
    else:
        lines = [f"no published draft for {target} is in the catalogue of {as_of()}", ""]
    lines += Table(_COLUMNS, [_row(each) for each in found.drafts], keys=1).text()
    for each in found.drafts:
        if each.draft.method not in WITHOUT_DRAFT or each.findings:
            lines += ["", f"  {clean(_name(each.draft))}", *_about(each)]
    notes = [_TELLS]
    if any(each.speedups for each in found.drafts):
        notes.append(_ESTIMATED)
    if any(each.is_assumed for each in found.drafts):
        notes.append(_ASSUMED)
    for note in (*notes, *found.notes):
        lines += ["", filled(clean(note), lead="", stream=sys.stdout)]
    return "\n".join(lines)


def _on(machine: Machine | None) -> str:
    if machine is None:
        return ""
    return f" on {machine.count * machine.nodes}x {machine.accelerator.name}"


def drafts_json(found: FoundDrafts) -> str:
    """Returns the same for scripts."""
    rows = [
        {
            **json_values(each.draft),
            "refused": each.is_refused,
            "findings": [{"code": item.code, "message": item.message} for item in each.findings],
            "memory": _memory_json(each),
            "estimated_speedup": [
                {"concurrency": load, **{name: round(value, 4) for name, value in json_values(gain).items()}}
                for load, gain in each.speedups.items()
            ]
            or None,
        }
        for each in found.drafts
    ]
    machine = found.machine
    shown = {
        "target": found.target,
        "as_of": str(as_of()),
        "machine": machine and {**picked(machine, "count", "nodes"), "accelerator": machine.accelerator.name},
        "drafts": rows,
        "notes": list(found.notes),
    }
    return json_document(shown)


def _memory_json(each: JudgedDraft) -> dict[str, object] | None:
    if each.memory is None:
        return None
    known = each.memory.unknown_draft is None
    return {
        "verdict": each.memory.verdict,
        "draft_bytes": each.memory.per_gpu_bytes.draft_weights if known else None,
        "is_head_assumed": each.is_assumed,
    }


def _name(draft: Draft) -> str:
    if draft.model is None and draft.method not in OWN_LAYERS:
        return f"{draft.method} (needs no draft)"
    return draft.model or "layers of the target"


def _row(each: JudgedDraft) -> tuple[str, ...]:
    draft = each.draft
    codes = ", ".join(dict.fromkeys(found.code for found in each.findings))
    return (
        _name(draft),
        draft.method,
        str(draft.num_speculative_tokens or NONE),
        f"{draft.parameters / 1e9:.1f}B" if draft.parameters else NONE,
        f"{draft.length:.2f}" if draft.length else NONE,
        (f"refused: {codes}" if each.is_refused else codes) or "ok",
        *_on_machine(each),
    )


def _on_machine(each: JudgedDraft) -> Iterator[str]:
    """The cells that a named machine fills."""
    memory, mark = each.memory, "*" * each.is_assumed
    yield _MEMORY[memory.verdict] if memory else NONE
    is_weighed = memory is not None and memory.unknown_draft is None and each.draft.model is not None
    yield f"{memory.per_gpu_bytes.draft_weights / GIB:.1f}{mark}" if memory and is_weighed else NONE
    for load in LOADS:
        gain = each.speedups.get(load)
        yield f"{gain.low:.1f}-{gain.high:.1f}x" if gain else NONE


def _about(each: JudgedDraft) -> Iterator[str]:
    draft = each.draft
    facts = [
        f"license {draft.license}" if draft.license else "",
        f"trained for {count(draft.context, 'token')} of context" if draft.context else "",
        f"needs vLLM {draft.vllm} or later" if draft.vllm else "",
        "parallel_drafting: true" if draft.parallel_drafting else "",
        draft.note or "",
    ]
    for text in (*filter(None, facts), *map(_reported, draft.reported)):
        yield filled(clean(text), lead="    ", stream=sys.stdout)
    yield from (f"    {clean(source.url)}" for source in draft.sources)


def _reported(said: Reported) -> str:
    figures = [
        f"{said.length:g} tokens/step" if said.length else "",
        f"{said.rate:.0%} of the draft tokens accepted" if said.rate else "",
        f"{said.speedup:g}x as fast" if said.speedup else "",
    ]
    conditions = [
        said.workload,
        f"K = {said.k}" if said.k else "",
        "" if said.temperature is None else f"temperature {said.temperature:g}",
    ]
    return f"{', '.join(filter(None, figures))} ({', '.join(filter(None, conditions))})"
