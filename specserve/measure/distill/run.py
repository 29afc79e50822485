"""A distillation, stage by stage; each leaves a file, so that the same command goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.measure.distill.heads import commands, write_samples
from specserve.measure.distill.plan import EPOCHS, OLD_SHARE, DistillPlan
from specserve.measure.distill.prove import Proof, prove
from specserve.measure.distill.result import Distilled, Gain, Outcome, gain_of
from specserve.measure.distill.training import ask_child
from specserve.measure.run import Outlet
from specserve.measure.statistics import PromptAcceptance
from specserve.serve.batch import GenerateView, entries, open_output
from specserve.serve.batch import run as generate
from specserve.serve.files import read_own, write_anew
from specserve.serve.signals import stop_on_signals

ANSWERS, TRAINED, SIMULATED = "answers.jsonl", "trained.json", "simulated.json"
ALTERNATIVE = "distilled"


@dataclass(frozen=True, slots=True)
class DistillViews:
    """Where a distillation shows how far it is."""

    outlet: Outlet
    """Of the benchmark that proves it."""
    generating: Callable[[int, int], AbstractContextManager[GenerateView]]
    """Lines in all, and lines that are done."""
    training: Callable[[Mapping[str, Any]], None]
    verify: Callable[[], Any]
    start: Callable[..., Any]


def run_distillation(plan: DistillPlan, *, views: DistillViews) -> Distilled:
    """Answers, training, simulation and proof. Raises SpecserveError; what was done stays."""
    say = views.outlet.notices.say
    took = _answers(plan, views)
    trained = _trained(plan, views)
    rows = _simulated(plan, say=say)
    simulated = _gain(rows, "test")
    found = Distilled(
        name=plan.profile.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        outcome="no_gain_simulated",
        draft=str(plan.block.model),
        folder=str(plan.place / "draft"),
        k=plan.k,
        platform=plan.launch.platform,
        versions={"vllm": plan.launch.vllm, **trained.get("versions", {})},
        prompts={
            "read": plan.new.read,
            "repeated": plan.new.repeated,
            "groups": plan.new.groups,
            **{part: len(getattr(plan.new, part)) for part in ("train", "validation", "test")},
        },
        overlap=plan.new.overlap,
        most_overlap=plan.new.most_overlap,
        answers=took[0],
        answer_tokens=took[1],
        steps=int(trained["step"]),
        trained_s=float(trained["seconds"]),
        simulated=simulated,
        simulated_old=_gain(rows, "old-test") if plan.old else None,
        notes=(*plan.new.remarks, *(plan.old.remarks if plan.old else ())),
    )
    if simulated.difference.low <= 0:
        return found
    say(f"simulated acceptance {simulated.old:.3f} to {simulated.new:.3f}; now both drafts are served")
    return _proven(found, prove(plan, outlet=views.outlet, verify=views.verify, start=views.start))


def prepare_head(plan: DistillPlan, *, views: DistillViews) -> list[tuple[str, list[str]]]:
    """The answers as training data of a head; returns the commands that train it. Raises SpecserveError."""
    _answers(plan, views)
    rows = [row for row in _lines(plan.place / ANSWERS) if "token_ids" in row]
    return commands(plan, write_samples(plan, rows))


def _proven(found: Distilled, proof: Proof) -> Distilled:
    outcome: Outcome = "better"
    if proof.is_faulty:
        outcome = "faulty"
    elif proof.measured.difference.low <= 0 or proof.is_slower:
        outcome = "no_gain_measured"
    return replace(
        found,
        outcome=outcome,
        measured=proof.measured,
        measured_old=proof.measured_old,
        speedups=proof.speedups,
        verified=proof.verified,
        versions={**found.versions, **proof.versions},
        notes=(*found.notes, *proof.notes),
    )


def _answers(plan: DistillPlan, views: DistillViews) -> tuple[int, int]:
    """Answers of the target without speculation, and their tokens."""
    place, say = plan.place / ANSWERS, views.outlet.notices.say
    questions = plan.questions
    if not place.exists():
        data = "".join(json.dumps(line) + "\n" for line in questions).encode()
        say(f"the target answers {len(questions)} prompts")
        with closing(open_output(plan.launch, data=data, path=place, resume=True, overwrite=False)) as output:
            total = sum(1 for _ in entries(data))
            with views.generating(total, len(output.done)) as progress:
                generate(plan.launch, data=data, output=output, progress=progress, say=say)
    rows = [row for row in _lines(place) if "token_ids" in row]
    if len(rows) < len(questions) / 2:
        raise FactError(
            f"the target answered {len(rows)} of {len(questions)} prompts", hint=f"`{place}` says why"
        )
    return len(rows), sum(len(row["token_ids"]) for row in rows)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _trained(plan: DistillPlan, views: DistillViews) -> dict[str, Any]:
    """The training's last message; of an earlier session, if it was complete."""
    kept = _kept(plan.place / TRAINED)
    if kept is not None and ((plan.place / "draft").is_dir() or not kept["step"]):
        return kept
    say = views.outlet.notices.say
    minutes = plan.request.train_for_s / 60
    say(f"training for {minutes:.0f} minutes at most, or {EPOCHS} passes over the answers")
    request = {
        "work": "train",
        "draft": str(plan.draft),
        "answers": str(plan.place / ANSWERS),
        "out": str(plan.place),
        "k": plan.k,
        "budget_s": plan.request.train_for_s,
        "epochs": EPOCHS,
        "seed": 0,
        "learning_rate": None,
        "old_share": OLD_SHARE if plan.old else 0.0,
        **_head_of(plan),
    }
    with stop_on_signals() as stop:
        done = ask_child(
            request,
            log_path=plan.place / "logs" / "train.log",
            stop=stop,
            on_event=views.training,
            python=plan.request.python,
        )
    if not (plan.place / "draft").is_dir():  # no state was better than the present draft
        done["step"] = 0
    _keep(plan.place / TRAINED, done)
    return done


def _head_of(plan: DistillPlan) -> dict[str, str]:
    return {"target": str(plan.target)} if plan.target else {}


def _simulated(plan: DistillPlan, *, say: Callable[[str], None]) -> dict[str, Any]:
    """By draft and part, what each held-out answer would have had accepted."""
    kept = _kept(plan.place / SIMULATED)
    if kept is not None:
        return kept
    say("simulating both drafts on held-out prompts")
    parts = ["test", *(["old-test"] if plan.old else [])]
    new = plan.place / "draft"
    folders = {"old": plan.draft, "new": new if new.is_dir() else plan.draft}
    found: dict[str, Any] = {}
    with stop_on_signals() as stop:
        for name, folder in folders.items():
            request = {
                "work": "simulate",
                "draft": str(folder),
                "answers": str(plan.place / ANSWERS),
                "parts": parts,
                "k": plan.k,
                **_head_of(plan),
            }
            log = plan.place / "logs" / f"simulate-{name}.log"
            found[name] = ask_child(request, log_path=log, stop=stop, python=plan.request.python)["rows"]
    _keep(plan.place / SIMULATED, found)
    return found


def _gain(rows: Mapping[str, Any], part: str) -> Gain:
    old, new = (
        [PromptAcceptance(row["id"], row["accepted"], row["drafted"]) for row in rows[name][part]]
        for name in ("old", "new")
    )
    return gain_of(old, new)


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(read_own(path, most_bytes=1 << 28))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _keep(path: Path, content: Mapping[str, Any]) -> None:
    try:
        write_anew(path, json.dumps(content).encode())
    except OSError as error:
        raise FactError(f"cannot write `{path}`: {error.strerror}") from error


def keep_result(plan: DistillPlan, found: Distilled, files: Mapping[str, str]) -> None:
    """Write the result and its card into the folder. Raises FactError."""
    try:
        for name, text in files.items():
            write_anew(plan.place / name, text.encode())
    except OSError as error:
        raise FactError(f"cannot write into `{plan.place}`: {error.strerror}") from error


def write_alternative(plan: DistillPlan, found: Distilled) -> str:
    """Write the new draft into the profile as an alternative; returns its name there. Raises UsageError, FactError."""
    from specserve.profile.load import load_profile
    from specserve.profile.writer import rewrite_section

    path = plan.request.profile
    said = {each: dict(block.keys) for each, block in load_profile(path).alternatives.items()}
    block = {**dict(plan.block.keys), "model": str((plan.place / "draft").resolve())}
    block.pop("revision", None)
    gain = found.measured or found.simulated
    rewrite_section(
        path,
        "alternatives",
        {**said, ALTERNATIVE: block},
        said=lambda profile: {each: dict(block.keys) for each, block in profile.alternatives.items()},
        remark=f"specserve distill: {found.created[:10]}, acceptance {gain.old:.2f} to {gain.new:.2f}",
    )
    return ALTERNATIVE
