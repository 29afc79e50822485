"""What a distillation shows: its plan, how far it is, what came of it, and the card of the new draft."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.measure.bench.result import Result
from specserve.measure.distill.plan import SPECULATORS, DistillPlan
from specserve.measure.distill.run import Distilled, DistillViews
from specserve.measure.distill.traffic import Split
from specserve.measure.run import Outlet
from specserve.report.answer import generation_line
from specserve.report.bench import rendered
from specserve.report.benchplan import BenchView
from specserve.report.console import LiveLine, clean, filled, say
from specserve.report.serializer import json_document, json_values
from specserve.report.servers import StartView
from specserve.report.text import count, moment, number, took, with_spread
from specserve.report.verify import VerifyProgress

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


def plan_text(plan: DistillPlan) -> str:
    """Return what would be done, for `--dry-run`."""
    new, questions = plan.new, plan.questions
    draft = clean(str(plan.block.model or "layers of the target"))
    tokens = sum(line["max_tokens"] for line in questions)
    rows = {
        "Traffic": (
            f"{count(new.read, 'request')}, {new.repeated or 'none'} of them repeated; "
            f"{count(new.groups, 'group')} of near-duplicates, the largest with {count(new.largest_group, 'prompt')}"
        ),
        "Parts": _parts(_sizes(new), new.overlap, new.most_overlap),
        "Old traffic": _parts(_sizes(plan.old)) if plan.old else "",
        "Answers": f"{len(questions)}, at most {tokens:,} tokens, by the target without speculation",
        "Training": f"at most {took(plan.request.train_for_s)}" if plan.draft else "",
        "Then": "both drafts are simulated; if the new one is better, measured and verified"
        if plan.draft
        else "the data for the speculators library is written, and its commands are printed",
        "Kept in": str(plan.place),
    }
    would = f"Would train {draft}, the draft of {clean(plan.profile.name)}, for K = {plan.k}."
    return "\n".join([would, "", *_rows(rows)])


def _sizes(split: Split) -> dict[str, int]:
    return {part: len(getattr(split, part)) for part in ("train", "validation", "test")}


def _parts(sizes: Mapping[str, int], overlap: float | None = None, most_overlap: float = 0.0) -> str:
    text = (
        f"{sizes['train']} prompts to train on, {sizes['validation']} to choose by, {sizes['test']} held out"
    )
    if overlap is not None:
        text += f"; {overlap:.0%} of a held-out prompt's text is also in training, {most_overlap:.0%} at most"
    return text


def _rows(rows: Mapping[str, str]) -> list[str]:
    """Each text behind its name; empty ones are left out."""
    return [filled(clean(text), lead=f"{name}: ", stream=sys.stdout) for name, text in rows.items() if text]


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
    lines = [filled(_OUTCOMES[found.outcome], lead="", stream=sys.stdout), "", *_gains(found), ""]
    lines += _rows(
        {
            "Traffic": _parts(found.prompts, found.overlap, found.most_overlap),
            "Answers": f"{found.answers:,} with {found.answer_tokens:,} tokens",
            "Training": f"{count(found.steps, 'step')} in {took(found.trained_s)}",
        }
    )
    for each in found.speedups:
        where = f"{each.point.workload}, concurrency {each.point.concurrency}"
        name = {"profile": "the present draft", "distilled": "the new draft"}.get(each.arm, each.arm)
        speed = with_spread(each.speedup, unit="x")
        lines += _rows({"Speed": f"{name} {speed} against none ({where}): {each.verdict}"})
    lines += _rows({"Verify": found.verified or ""})
    lines += [row for note in found.notes for row in _rows({"note": note})]
    written = f"Written into the profile: alternatives.{found.alternative}" if found.alternative else ""
    return "\n".join([*lines, "", *filter(None, [written, f"The new draft: {clean(found.folder)}"])])


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
                f"  {name:<24}{number(gain.old, 3)} -> {number(gain.new, 3)}  {value} points ({low} to {high}), "
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
        f"{took(found.trained_s)}",
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
