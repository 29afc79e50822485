"""What `drafts` and `distill` show: a target's drafts, and one that was trained on its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.diagnostics import Notices
from specserve.measure.bench.result import Result
from specserve.measure.distill.plan import DistillPlan
from specserve.measure.distill.run import Distilled, DistillViews
from specserve.measure.drafts import WITHOUT_DRAFT, FoundDrafts, JudgedDraft
from specserve.measure.servers import Outlet
from specserve.models.drafts import Draft
from specserve.report.answer import generation_line
from specserve.report.bench import rendered
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
_ASSUMED = (
    "*: this head's configuration is unknown; assumed: one layer as wide as the target, a "
    "vocabulary of 32,000."
)
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def drafts_document(found: FoundDrafts) -> Document:
    """Returns the table, then for each draft what its authors report and where."""
    listed = [each for each in found.drafts if each.draft.method not in WITHOUT_DRAFT]
    has_machine, on = found.machine is not None, f" on {found.machine}" if found.machine else ""
    answer = f"no published draft for {found.target} is in the catalogue of {found.as_of}"
    if listed:
        answer = f"{count(len(listed), 'draft')} for {found.target}{on}, as of {found.as_of}"
    best = max(listed, key=lambda each: each.draft.length, default=None)
    if best and best.draft.length:
        answer += (
            f"; the longest reported: {_name(best.draft)}, {best.draft.length:.2f} tokens/step"
        )
    columns = [
        Column("draft", "name"),
        Column("method", "code", is_detail=has_machine),
        Column("K", is_detail=has_machine),
        Column("tokens/step", is_detail=has_machine),
        Column("rules", "text"),
        Column("memory", "text"),
    ]
    notes = [
        _TELLS,
        *([_ASSUMED] if any(each.is_assumed for each in found.drafts) else []),
        *found.notes,
    ]
    sections = [Section(_name(each.draft), [_about(each.draft)]) for each in listed]
    table = Table(columns, [_row(each) for each in found.drafts], keys=1)
    blocks: list[Block] = [Paragraph(answer), table, *sections, *map(Paragraph, notes)]
    return Document("drafts", found.target, blocks, has_answer=True)


def _name(draft: Draft) -> str:
    if draft.method in WITHOUT_DRAFT:
        return f"{draft.method} (needs no draft)"
    return draft.model or "layers of the target"


def _row(each: JudgedDraft) -> tuple[str, ...]:
    draft, codes = each.draft, ", ".join(each.findings)
    weights = (
        f", {each.draft_bytes / GIB:.1f} GiB{'*' * each.is_assumed}" if each.draft_bytes else ""
    )
    return (
        _name(draft),
        draft.method,
        str(draft.num_speculative_tokens or DASH),
        f"{draft.length:.2f}" if draft.length else DASH,
        (f"refused: {codes}" if each.is_refused else codes) or "ok",
        f"{_MEMORY[each.memory]}{weights}" if each.memory else DASH,
    )


def _about(draft: Draft) -> Items:
    facts = [
        draft.method,
        f"K = {draft.num_speculative_tokens}" if draft.num_speculative_tokens else "",
        f"{draft.parameters / 1e9:.1f}B parameters" if draft.parameters else "",
        f"license {draft.license}" if draft.license else "",
        f"trained for {count(draft.context, 'token')} of context" if draft.context else "",
        f"needs vLLM {draft.vllm} or later" if draft.vllm else "",
        "parallel_drafting: true" if draft.parallel_drafting else "",
        draft.note or "",
    ]
    lines = [", ".join(filter(None, facts))]
    for each in draft.reported:
        figures = [
            f"{each.length:g} tokens/step" if each.length else "",
            f"{each.rate:.0%} of the draft tokens accepted" if each.rate else "",
            f"{each.speedup:g}x as fast" if each.speedup else "",
        ]
        conditions = [
            each.workload,
            f"K = {each.k}" if each.k else "",
            "" if each.temperature is None else f"temperature {each.temperature:g}",
        ]
        lines.append(f"{', '.join(filter(None, figures))} ({', '.join(filter(None, conditions))})")
    return Items([("", line) for line in (*lines, *(source.url for source in draft.sources))])


def distill_plan_document(plan: DistillPlan) -> Document:
    """Returns what would be done, for `--dry-run`."""
    traffic, questions = plan.traffic, plan.questions
    tokens = sum(line["max_tokens"] for line in questions)
    lines = [
        (
            "traffic",
            f"{len(traffic.train)} prompts to train on, {len(traffic.validation)} to choose by, "
            f"{len(traffic.test)} held out; {traffic.left_out or 'none'} left out, as like others",
        ),
        (
            "answers",
            f"{len(questions)}, at most {tokens:,} tokens, by the target without speculation",
        ),
        (
            "training",
            f"at most {duration(plan.request.train_for_s)}, then the proof if a state is better",
        ),
        ("kept in", str(plan.folder)),
    ]
    answer = Paragraph(f"would train {plan.block.model} for K = {plan.k}")
    return Document("distillation", plan.profile.name, [answer, Items(lines)], has_answer=True)


def distilled_document(found: Distilled) -> Document:
    """Returns the result; its first line answers."""
    proof, answer = found.proof, "the new draft is not better; the profile is unchanged"
    if found.is_better:
        answer = "the new draft is better, and is the profile's alternative `distilled`"
    training = (
        f"{count(found.steps, 'step')} on {found.answers:,} answers in {duration(found.trained_s)}"
    )
    lines = [("training", training)]
    if proof is None:
        answer += "; no state of the training did better on the validation prompts, and nothing "
        answer += "was served"
    else:
        rates = (proof.old_acceptance, proof.new_acceptance)
        answer += f": acceptance {' to '.join(decimals(rate, 3) for rate in rates)}, "
        answer += f"{with_spread(proof.gain, unit='x')} at K = {found.k}"
        lines.append(("speed", f"{with_spread(proof.speedup, unit='x')} the present draft's"))
    lines += [*(("note", note) for note in found.notes), ("new draft", found.folder)]
    return Document("draft", found.name, [Paragraph(answer), Items(lines)], has_answer=True)


class TrainingLine:
    """Shows how far a training is, and each evaluation of it."""

    def __init__(self) -> None:
        self._line = LiveLine(every_s=15.0)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """One message of the training."""
        share = (
            f"  training: {100 * min(1.0, event.get('share', 0.0)):.0f} %, step {event.get('step')}"
        )
        if event["event"] == "progress":
            self._line.show(f"{share}, loss {event['loss']:.3f}")
        elif event["event"] == "evaluated":
            self._line.erase()
            say(f"{share}: acceptance {event['acceptance']:.3f}")


def distill_views(notices: Notices) -> DistillViews:
    """Returns where a distillation shows how far it is, on stderr."""

    def files(result: Result) -> dict[str, str]:
        names = {"result.json": "json", "report.html": "html"}
        return {name: rendered(result, form=form) for name, form in names.items()}

    return DistillViews(
        outlet=Outlet(notices, BenchView, files),
        generating=generation_line,
        training=TrainingLine(),
    )
