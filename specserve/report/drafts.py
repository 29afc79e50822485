"""What `drafts` and `distill` show: a target's drafts, and one that was trained on its traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specserve.measure.distill import Distilled
from specserve.measure.drafts import WITHOUT_DRAFT, FoundDrafts, JudgedDraft
from specserve.models.drafts import Draft
from specserve.report.console import LiveLine, say
from specserve.report.page import Block, Document, Items, Section
from specserve.report.text import DASH, GIB, Column, Table, count, figure, with_spread

_TELLS = (
    "tokens/step is what the authors report, on workloads that differ; `specserve bench` measures "
    "yours. `ngram` and `suffix` need no draft (`suffix` needs the package arctic-inference); what "
    "they bring depends on how often your texts repeat."
)
_COLUMNS = (
    Column("draft", "name"),
    Column("method", "name"),
    Column("K"),
    Column("tokens/step"),
    Column("rules", "text"),
    Column("memory", "text"),
)
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def drafts_document(found: FoundDrafts) -> Document:
    """Return the table, then for each draft what its authors report and where."""
    listed = [each.draft for each in found.drafts if each.draft.method not in WITHOUT_DRAFT]
    answer = f"no published draft for {found.target} is in the catalogue of {found.as_of}"
    if listed:
        on = f" on {found.machine}" if found.machine else ""
        answer = f"{count(len(listed), 'draft')} for {found.target}{on}, as of {found.as_of}"
    unknown = DASH if found.machine is None else "not known"
    table = Table(_COLUMNS, [_row(each, unknown) for each in found.drafts])
    about = [Section(_name(draft), [_about(draft)]) for draft in listed]
    blocks: list[Block] = [table, *about, _TELLS, *found.notes]
    return Document("drafts", found.target, blocks, [("", answer)])


def _name(draft: Draft) -> str:
    return draft.method if draft.method in WITHOUT_DRAFT else draft.model or "layers of the target"


def _row(each: JudgedDraft, unknown: str) -> list[str]:
    draft, codes = each.draft, ", ".join(each.findings)
    memory = _MEMORY[each.memory] if each.memory else unknown
    if each.memory and each.draft_bytes:
        memory += f", {each.draft_bytes / GIB:.1f} GiB"
    rules = f"refused: {codes}" if each.is_refused else codes or "ok"
    tokens = str(draft.num_speculative_tokens or DASH)
    return [_name(draft), draft.method, tokens, figure(draft.length or None), rules, memory]


def _about(draft: Draft) -> Items:
    lines = [draft.note] if draft.note else []
    for each in draft.reported:
        found = f"{each.speedup:g}x as fast" if each.speedup else ""
        found = f"{each.rate:.0%} of the draft tokens accepted" if each.rate else found
        found = f"{each.length:g} tokens/step" if each.length else found
        if each.lengths:
            found = f"{', '.join(f'{length:.2f}' for length in each.lengths)} tokens/step"
            found += f" with K = 1 to {len(each.lengths)}"
        at = f", K = {each.k}" if each.k else ""
        at += "" if each.temperature is None else f", temperature {each.temperature:g}"
        lines.append(f"{found} ({each.workload}{at})")
    return Items([("", line) for line in (*lines, *(source.url for source in draft.sources))])


def distilled_document(found: Distilled) -> Document:
    """Return the result; its first line answers."""
    proof, answer = found.proof, "the new draft is not better; the profile is unchanged"
    if found.is_better:
        answer = "the new draft is better, and is the profile's alternative `distilled`"
    lines = list[tuple[str, str]]()
    if proof is None:
        answer += ": no state did better on the validation prompts, and none was served"
    else:
        rates = f"{figure(proof.old_acceptance, 3)} to {figure(proof.new_acceptance, 3)}"
        answer += f": acceptance {rates}, {with_spread(proof.gain, 'x')}"
        lines.append(("speed", f"{with_spread(proof.speedup, 'x')} the present draft's"))
    lines += [*(("note", note) for note in found.notes), ("new draft", found.folder)]
    return Document("draft", found.name, [Items(lines)], [("", answer)])


def training_line() -> Callable[[Mapping[str, Any]], None]:
    """Return what shows how far a training is, on stderr."""
    line = LiveLine(every_s=15.0)

    def training(event: Mapping[str, Any]) -> None:
        share = 100 * min(1.0, event.get("share", 0.0))
        done = f"  training: {share:.0f} %, step {event.get('step')}"
        if event["event"] == "progress":
            line.show(f"{done}, loss {event['loss']:.3f}")
        elif event["event"] == "evaluated":
            say(f"{done}: guesses {event['agreement']:.1%} of the target's tokens")

    return training
