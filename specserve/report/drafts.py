"""What `drafts` and `distill` show: a target's drafts, and one that was trained on its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.diagnostics import Notices
from specserve.measure.distill.plan import DistillPlan
from specserve.measure.distill.run import Distilled, DistillViews
from specserve.measure.drafts import WITHOUT_DRAFT, FoundDrafts, JudgedDraft
from specserve.measure.servers import Outlet
from specserve.models.drafts import Draft
from specserve.report.answer import generation_line
from specserve.report.bench import result_files
from specserve.report.console import LiveLine, say
from specserve.report.estimates import BenchView
from specserve.report.page import Block, Document, Items, Paragraph, Section
from specserve.report.text import (
    DASH,
    GIB,
    Column,
    Table,
    count,
    decimals,
    duration,
    with_spread,
)

_TELLS = (
    "tokens/step is what the authors report, on workloads that differ; `specserve bench` measures "
    "yours. `ngram` and `suffix` need no draft (`suffix` needs the package arctic-inference); what "
    "they bring depends on how often your texts repeat."
)
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def drafts_document(found: FoundDrafts) -> Document:
    """Return the table, then for each draft what its authors report and where."""
    listed = [each.draft for each in found.drafts if each.draft.method not in WITHOUT_DRAFT]
    answer = f"no published draft for {found.target} is in the catalogue of {found.as_of}"
    if listed:
        on = f" on {found.machine}" if found.machine else ""
        answer = f"{count(len(listed), 'draft')} for {found.target}{on}, as of {found.as_of}"
    has_machine = found.machine is not None
    columns = [
        Column("draft", "name"),
        Column("method", "name", is_detail=has_machine),
        Column("K", is_detail=has_machine),
        Column("tokens/step", is_detail=has_machine),
        Column("rules", "text"),
        Column("memory", "text"),
    ]
    blocks: list[Block] = [
        Table(columns, [_row(each, has_machine=has_machine) for each in found.drafts]),
        *(Section(_name(each), [_about(each)]) for each in listed),
        *map(Paragraph, [_TELLS, *found.notes]),
    ]
    return Document("drafts", found.target, blocks, [("", answer)])


def _name(draft: Draft) -> str:
    if draft.method in WITHOUT_DRAFT:
        return f"{draft.method} (needs no draft)"
    return draft.model or "layers of the target"


def _row(each: JudgedDraft, *, has_machine: bool) -> list[str]:
    draft, codes = each.draft, ", ".join(each.findings)
    memory = "not known" if has_machine else DASH
    if each.memory:
        memory = _MEMORY[each.memory]
        memory += f", {each.draft_bytes / GIB:.1f} GiB" if each.draft_bytes else ""
    return [
        _name(draft),
        draft.method,
        str(draft.num_speculative_tokens or DASH),
        f"{draft.length:.2f}" if draft.length else DASH,
        (f"refused: {codes}" if each.is_refused else codes) or "ok",
        memory,
    ]


def _about(draft: Draft) -> Items:
    facts = [
        draft.method,
        f"K = {draft.num_speculative_tokens}" if draft.num_speculative_tokens else "",
        f"license {draft.license}" if draft.license else "",
        f"needs vLLM {draft.vllm} or later" if draft.vllm else "",
        draft.note or "",
    ]
    lines = [", ".join(filter(None, facts))]
    for each in draft.reported:
        figure = f"{each.speedup:g}x as fast" if each.speedup else ""
        figure = f"{each.rate:.0%} of the draft tokens accepted" if each.rate else figure
        figure = f"{each.length:g} tokens/step" if each.length else figure
        where = each.workload + (f", K = {each.k}" if each.k else "")
        where += "" if each.temperature is None else f", temperature {each.temperature:g}"
        lines.append(f"{figure} ({where})")
    return Items([("", line) for line in (*lines, *(source.url for source in draft.sources))])


def distill_plan_document(plan: DistillPlan) -> Document:
    """Return what would be done, for `--dry-run`."""
    traffic, questions = plan.traffic, plan.questions
    split = (
        f"{len(traffic.train)} prompts to train on, {len(traffic.validation)} to choose by, "
        f"{len(traffic.test)} held out; {traffic.left_out or 'none'} left out, as like others"
    )
    tokens = sum(line["max_tokens"] for line in questions)
    answers = f"{len(questions)}, at most {tokens:,} tokens, by the target without speculation"
    limit = duration(plan.request.train_for_s)
    lines = [
        ("traffic", split),
        ("answers", answers),
        ("training", f"at most {limit}, then the proof if a state is better"),
        ("kept in", str(plan.folder)),
    ]
    answer = f"would train {plan.block.model} for K = {plan.k}"
    return Document("distillation", plan.profile.name, [Items(lines)], [("", answer)])


def distilled_document(found: Distilled) -> Document:
    """Return the result; its first line answers."""
    proof, answer = found.proof, "the new draft is not better; the profile is unchanged"
    if found.is_better:
        answer = "the new draft is better, and is the profile's alternative `distilled`"
    training = f"{count(found.steps, 'step')} on {found.answers:,} answers"
    lines = [("training", f"{training} in {duration(found.trained_s)}")]
    if proof is None:
        answer += "; no state of the training did better on the validation prompts, and nothing "
        answer += "was served"
    else:
        rates = f"{decimals(proof.old_acceptance, 3)} to {decimals(proof.new_acceptance, 3)}"
        answer += f": acceptance {rates}, {with_spread(proof.gain, unit='x')} at K = {found.k}"
        lines.append(("speed", f"{with_spread(proof.speedup, unit='x')} the present draft's"))
    lines += [*(("note", note) for note in found.notes), ("new draft", found.folder)]
    return Document("draft", found.name, [Items(lines)], [("", answer)])


class TrainingLine(LiveLine):
    """Shows how far a training is, and each evaluation of it."""

    def __init__(self) -> None:
        super().__init__(every_s=15.0)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show one message of the training."""
        share = 100 * min(1.0, event.get("share", 0.0))
        done = f"  training: {share:.0f} %, step {event.get('step')}"
        if event["event"] == "progress":
            self.show(f"{done}, loss {event['loss']:.3f}")
        elif event["event"] == "evaluated":
            say(f"{done}: acceptance {event['acceptance']:.3f}")


def distill_views(notices: Notices) -> DistillViews:
    """Return where a distillation shows how far it is, on stderr."""
    return DistillViews(
        outlet=Outlet(notices, BenchView, result_files),
        generating=generation_line,
        training=TrainingLine(),
    )
