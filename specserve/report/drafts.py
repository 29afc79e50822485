"""What `drafts` and `distill` show: the published drafts of a target, and one that was trained on its traffic."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.hardware.accelerators import Machine
from specserve.measure.bench.result import Result
from specserve.measure.distill.plan import SPECULATORS, DistillPlan
from specserve.measure.distill.run import Distilled, DistillViews
from specserve.measure.distill.traffic import Split
from specserve.measure.drafts import WITHOUT_DRAFT, FoundDrafts, JudgedDraft
from specserve.measure.servers import Outlet
from specserve.models.drafts import Draft, Reported, as_of
from specserve.report.answer import generation_line
from specserve.report.bench import rendered
from specserve.report.console import LiveLine, escaped, say, wrapped
from specserve.report.estimates import BenchView
from specserve.report.servers import StartView
from specserve.report.text import (
    DASH,
    GIB,
    Column,
    Table,
    count,
    decimals,
    duration,
    fields_of,
    json_document,
    json_values,
    moment,
    with_spread,
)
from specserve.report.verify import VerifyProgress
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
)
_TELLS = (
    "tokens/step is what the authors report, on workloads that differ; `specserve bench` measures yours. "
    "`ngram` and `suffix` need no draft (`suffix` needs the package arctic-inference); what they bring depends on how "
    "often your texts repeat."
)
_ASSUMED = "*: this head's configuration is unknown; assumed: one layer as wide as the target, a vocabulary of 32,000."
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def drafts_text(found: FoundDrafts) -> str:
    """Returns the table, then for each draft what its authors report and where."""
    listed = [each for each in found.drafts if each.draft.method not in WITHOUT_DRAFT]
    target = escaped(found.target)
    if listed:
        lines = [f"{count(len(listed), 'draft')} for {target}{_on(found.machine)}, as of {as_of()}:", ""]
    else:
        lines = [f"no published draft for {target} is in the catalogue of {as_of()}", ""]
    lines += Table(_COLUMNS, [_draft_row(each) for each in found.drafts], keys=1).text()
    for each in found.drafts:
        if each.draft.method not in WITHOUT_DRAFT or each.findings:
            lines += ["", f"  {escaped(_name(each.draft))}", *_about(each)]
    notes = [_TELLS]
    if any(each.is_assumed for each in found.drafts):
        notes.append(_ASSUMED)
    for note in (*notes, *found.notes):
        lines += ["", wrapped(escaped(note), lead="", stream=sys.stdout)]
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
        }
        for each in found.drafts
    ]
    machine = found.machine
    shown = {
        "target": found.target,
        "as_of": str(as_of()),
        "machine": machine
        and {**fields_of(machine, "count", "nodes"), "accelerator": machine.accelerator.name},
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


def _draft_row(each: JudgedDraft) -> tuple[str, ...]:
    draft = each.draft
    codes = ", ".join(dict.fromkeys(found.code for found in each.findings))
    return (
        _name(draft),
        draft.method,
        str(draft.num_speculative_tokens or DASH),
        f"{draft.parameters / 1e9:.1f}B" if draft.parameters else DASH,
        f"{draft.length:.2f}" if draft.length else DASH,
        (f"refused: {codes}" if each.is_refused else codes) or "ok",
        *_on_machine(each),
    )


def _on_machine(each: JudgedDraft) -> Iterator[str]:
    """The cells that a named machine fills."""
    memory, mark = each.memory, "*" * each.is_assumed
    yield _MEMORY[memory.verdict] if memory else DASH
    is_weighed = memory is not None and memory.unknown_draft is None and each.draft.model is not None
    yield f"{memory.per_gpu_bytes.draft_weights / GIB:.1f}{mark}" if memory and is_weighed else DASH


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
        yield wrapped(escaped(text), lead="    ", stream=sys.stdout)
    yield from (f"    {escaped(source.url)}" for source in draft.sources)


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


_VERIFY_S = 60.0
_OUTCOMES = {
    "better": "The new draft is better.",
    "no_gain_simulated": (
        "The new draft is not better: on held-out prompts, its simulated acceptance is within the interval of the "
        "present one. Nothing was served, and the profile is unchanged."
    ),
    "no_gain_measured": "The new draft is not better when it is served. The profile is unchanged.",
    "faulty": "`verify` found a fault in the output with the new draft. The profile is unchanged.",
}


def distill_plan_text(plan: DistillPlan) -> str:
    """Return what would be done, for `--dry-run`."""
    new, questions = plan.new, plan.questions
    draft = escaped(str(plan.block.model or "layers of the target"))
    tokens = sum(line["max_tokens"] for line in questions)
    rows = {
        "Traffic": (
            f"{count(new.read, 'request')}, {new.repeated or 'none'} of them repeated; "
            f"{count(new.groups, 'group')} of near-duplicates, the largest with {count(new.largest_group, 'prompt')}"
        ),
        "Parts": _parts(_sizes(new), new.overlap, new.most_overlap),
        "Old traffic": _parts(_sizes(plan.old)) if plan.old else "",
        "Answers": f"{len(questions)}, at most {tokens:,} tokens, by the target without speculation",
        "Training": f"at most {duration(plan.request.train_for_s)}" if plan.draft else "",
        "Then": "both drafts are simulated; if the new one is better, measured and verified"
        if plan.draft
        else "the data for the speculators library is written, and its commands are printed",
        "Kept in": str(plan.place),
    }
    would = f"Would train {draft}, the draft of {escaped(plan.profile.name)}, for K = {plan.k}."
    return "\n".join([would, "", *_labelled_rows(rows)])


def _sizes(split: Split) -> dict[str, int]:
    return {part: len(getattr(split, part)) for part in ("train", "validation", "test")}


def _parts(sizes: Mapping[str, int], overlap: float | None = None, most_overlap: float = 0.0) -> str:
    text = (
        f"{sizes['train']} prompts to train on, {sizes['validation']} to choose by, {sizes['test']} held out"
    )
    if overlap is not None:
        text += f"; {overlap:.0%} of a held-out prompt's text is also in training, {most_overlap:.0%} at most"
    return text


def _labelled_rows(rows: Mapping[str, str]) -> list[str]:
    """Each text behind its name; empty ones are left out."""
    return [
        wrapped(escaped(text), lead=f"{name}: ", stream=sys.stdout) for name, text in rows.items() if text
    ]


def commands_text(plan: DistillPlan, commands: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Returns the commands that train a head, each behind its reason, as a script."""
    lines = [
        f"# The data is ready. These commands train the {plan.block.method} head with speculators {SPECULATORS}.",
        "# specserve has not run them: they need a GPU. They continue from the present head; training one from",
        "# scratch takes hundreds of thousands of conversations.",
    ]
    for reason, command in commands:
        lines += ["", f"# {reason}", shlex.join(command)]
    return "\n".join(lines)


def distilled_text(found: Distilled) -> str:
    """Return the result for a person."""
    lines = [wrapped(_OUTCOMES[found.outcome], lead="", stream=sys.stdout), "", *_gains(found), ""]
    lines += _labelled_rows(
        {
            "Traffic": _parts(found.prompts, found.overlap, found.most_overlap),
            "Answers": f"{found.answers:,} with {found.answer_tokens:,} tokens",
            "Training": f"{count(found.steps, 'step')} in {duration(found.trained_s)}",
        }
    )
    for each in found.speedups:
        where = f"{each.point.workload}, concurrency {each.point.concurrency}"
        name = {"profile": "the present draft", "distilled": "the new draft"}.get(each.arm, each.arm)
        speed = with_spread(each.speedup, unit="x")
        lines += _labelled_rows({"Speed": f"{name} {speed} against none ({where}): {each.verdict.word}"})
    lines += _labelled_rows({"Verify": found.verified or ""})
    lines += [row for note in found.notes for row in _labelled_rows({"note": note})]
    written = f"Written into the profile: alternatives.{found.alternative}" if found.alternative else ""
    return "\n".join([*lines, "", *filter(None, [written, f"The new draft: {escaped(found.folder)}"])])


def _gains(found: Distilled) -> Iterator[str]:
    yield f"Acceptance at K = {found.k} (accepted over drafted tokens), with 95 % interval:"
    rows = {
        "held out, simulated": found.simulated,
        "held out, measured": found.measured,
        "old traffic, simulated": found.simulated_old,
        "old traffic, measured": found.measured_old,
    }
    for name, gain in rows.items():
        if gain is not None:
            difference = gain.difference
            value, low, high = (
                f"{100 * one:+.1f}" for one in (difference.value, difference.low, difference.high)
            )
            yield (
                f"  {name:<24}{decimals(gain.old, 3)} -> {decimals(gain.new, 3)}  {value} points ({low} to {high}), "
                f"{count(gain.prompts, 'prompt')}"
            )


def distilled_json(found: Distilled) -> str:
    """Returns the result for scripts."""
    return json_document(json_values(found))


def card_text(found: Distilled) -> str:
    """Returns the model card: what it was made from, when, and what came of it."""
    lines = [
        f"# A draft for {found.name}",
        "",
        f"Made by `specserve distill` on {moment(found.created)} from `{Path(found.draft).name}`, on "
        f"{found.prompts['train']} prompts of one traffic, for the target of that profile alone.",
        "",
        f"- {found.answers:,} answers of the target, {found.answer_tokens:,} tokens; {found.steps} steps in "
        f"{duration(found.trained_s)}",
        *(f"- {line.strip()}" for line in _gains(found)),
        f"- `verify`: {found.verified}",
        *(f"- {name} {version}" for name, version in sorted(found.versions.items())),
        "",
        "Speculative decoding with it does not change the target's text. The prompts are not in this folder, but a "
        "model can repeat what it was trained on: treat it as you treat the traffic.",
        "",
    ]
    return "\n".join(lines)


class TrainingLine:
    """Shows how far a training is, and each evaluation of it."""

    def __init__(self) -> None:
        self._line = LiveLine(every_s=15.0)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """One message of the training."""
        share = f"{100 * min(1.0, event.get('share', 0.0)):.0f} %"
        if event["event"] == "progress":
            self._line.show(f"  training: {share}, step {event['step']}, loss {event['loss']:.3f}")
        elif event["event"] == "evaluated":
            old = event["old_acceptance"]
            beside = "" if old is None else f", old traffic {old:.3f}"
            self._line.erase()
            say(f"  training: {share}, step {event['step']}: acceptance {event['acceptance']:.3f}{beside}")


def distill_views(notices: Notices) -> DistillViews:
    """Where a distillation shows how far it is, on stderr."""

    def files(result: Result) -> dict[str, str]:
        return {
            "result.json": rendered(result, form="json"),
            "report.html": rendered(result, form="html"),
        }

    return DistillViews(
        outlet=Outlet(notices, BenchView, files),
        generating=generation_line,
        training=TrainingLine(),
        verify=lambda: VerifyProgress(limit_s=_VERIFY_S),
        start=StartView,
    )
