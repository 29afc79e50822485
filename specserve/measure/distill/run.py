"""A distillation, stage by stage; each leaves a file, so that the same command goes on where it was stopped."""

from __future__ import annotations

import json
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specserve.errors import FactError, Interrupted
from specserve.measure.bench.figures import speedup
from specserve.measure.bench.plan import BenchRequest
from specserve.measure.bench.result import Comparison
from specserve.measure.bench.run import run_benchmark
from specserve.measure.bench.rundir import RUN, read_passes
from specserve.measure.bench.variants import BASELINE, PROFILE
from specserve.measure.distill.plan import (
    EPOCHS,
    OLD_SHARE,
    DistillPlan,
    commands,
    line_of,
    write_samples,
)
from specserve.measure.drafts import write_alternatives
from specserve.measure.servers import Outlet
from specserve.measure.statistics import COSTS, Estimate, PromptAcceptance, acceptance_gain, verdict
from specserve.serve.batch import GenerateStatus, open_output
from specserve.serve.batch import run as generate
from specserve.serve.causes import died
from specserve.serve.files import read_own
from specserve.serve.process import JsonChild
from specserve.serve.signals import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from specserve.measure.bench.rundir import Pass

ALTERNATIVE = "distilled"
_BUDGET = {"cpu": "6m", "cuda": "15m"}
_LOAD = {"cpu": "4", "cuda": "8"}
_VERIFY_S = 60.0
_MOST_VERIFIED = 64
Outcome = Literal["better", "no_gain_simulated", "no_gain_measured", "faulty"]
"""`no_gain_simulated`: nothing was served; `faulty`: `verify` found a fault."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The acceptance of two drafts on the same held-out prompts."""

    old: float
    """Accepted over drafted tokens of the present draft."""
    new: float
    difference: Estimate
    """New minus old, with its 95 % interval over prompts."""
    prompts: int


@dataclass(frozen=True, slots=True)
class Distilled:
    """A whole distillation."""

    name: str
    created: str
    """ISO 8601, UTC."""
    outcome: Outcome
    draft: str
    """The present draft, as the profile names it."""
    folder: str
    """The new one."""
    k: int
    platform: str
    versions: Mapping[str, str]
    prompts: Mapping[str, int]
    """By part: train, validation, test; read, repeated, groups."""
    overlap: float
    most_overlap: float
    answers: int
    answer_tokens: int
    steps: int
    trained_s: float
    simulated: Gain
    simulated_old: Gain | None = None
    """On the held-out part of `--mix`."""
    measured: Gain | None = None
    measured_old: Gain | None = None
    speedups: tuple[Comparison, ...] = ()
    """Each draft against no speculation, at each workload."""
    verified: str | None = None
    """The verdict of `verify` on the new draft."""
    alternative: str | None = None
    """Its name in the profile, if it was written there."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DistillViews:
    """Where a distillation shows how far it is."""

    outlet: Outlet
    """Of the benchmark that proves it."""
    generating: Callable[[], AbstractContextManager[Callable[[GenerateStatus], None]]]
    training: Callable[[Mapping[str, Any]], None]
    verify: Callable[[], Any]
    start: Callable[..., Any]


def run_distillation(plan: DistillPlan, *, views: DistillViews) -> Distilled:
    """Answer, train, simulate and prove. Raises SpecserveError; what was done stays."""
    answers = _answers(plan, views)
    trained = _stage(plan, "trained.json", lambda: _trained(plan, views))
    rows = _stage(plan, "simulated.json", lambda: _simulated(plan, views))
    simulated = _simulated_gain(rows, "test")
    new = plan.new
    found = Distilled(
        name=plan.profile.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        outcome="no_gain_simulated",
        draft=str(plan.block.model),
        folder=str(plan.trained),
        k=plan.k,
        platform=plan.launch.platform,
        versions={"vllm": plan.launch.vllm, **trained.get("versions", {})},
        prompts={
            "read": new.read,
            "repeated": new.repeated,
            "groups": new.groups,
            **{part: len(getattr(new, part)) for part in ("train", "validation", "test")},
        },
        overlap=new.overlap,
        most_overlap=new.most_overlap,
        answers=len(answers),
        answer_tokens=sum(len(row["token_ids"]) for row in answers),
        steps=int(trained["step"]),
        trained_s=float(trained["seconds"]),
        simulated=simulated,
        simulated_old=_simulated_gain(rows, "old-test") if plan.old else None,
        notes=(*new.remarks, *(plan.old.remarks if plan.old else ())),
    )
    if simulated.difference.low <= 0:
        return found
    old, better = f"{simulated.old:.3f}", f"{simulated.new:.3f}"
    views.outlet.notices.say(f"simulated acceptance {old} to {better}; now both drafts are served")
    return _proven(found, plan, views)


def prepare_head(plan: DistillPlan, *, views: DistillViews) -> list[tuple[str, list[str]]]:
    """Write the answers as training data of a head; return the commands that train it. Raises SpecserveError."""
    return commands(plan, write_samples(plan, _answers(plan, views)))


def _answers(plan: DistillPlan, views: DistillViews) -> list[dict[str, Any]]:
    """Answers of the target without speculation."""
    place, say = plan.place / "answers.jsonl", views.outlet.notices.say
    questions = plan.questions
    if not place.exists():
        data = "".join(json.dumps(line) + "\n" for line in questions).encode()
        say(f"the target answers {len(questions)} prompts")
        output = open_output(plan.launch, data=data, path=place, resume=True, overwrite=False)
        with closing(output), views.generating() as show:
            generate(plan.launch, data=data, output=output, show=show, say=say)
    with place.open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if "token_ids" in row]
    if len(rows) < len(questions) / 2:
        raise FactError(
            f"the target answered {len(rows)} of {len(questions)} prompts", hint=f"`{place}` says why"
        )
    return rows


def _stage(plan: DistillPlan, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a stage found, of an earlier session if it was complete."""
    try:
        kept = json.loads(read_own(plan.place / name, most_bytes=1 << 28))
    except (OSError, ValueError):
        kept = None
    if isinstance(kept, dict):
        return kept
    found = work()
    plan.write(name, json.dumps(found))
    return found


def _ask(plan: DistillPlan, log: str, request: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """The last message of the child that trains or simulates."""
    whole = {"answers": str(plan.place / "answers.jsonl"), "k": plan.k, **request}
    if plan.target:
        whole["target"] = str(plan.target)
    with stop_on_signals() as stop:
        log_path = plan.place / "logs" / f"{log}.log"
        return ask_child(whole, log_path=log_path, stop=stop, python=plan.request.python, **options)


def _trained(plan: DistillPlan, views: DistillViews) -> dict[str, Any]:
    minutes = plan.request.train_for_s / 60
    views.outlet.notices.say(
        f"training for {minutes:.0f} minutes at most, or {EPOCHS} passes over the answers"
    )
    request = {
        "work": "train",
        "draft": str(plan.draft),
        "out": str(plan.place),
        "budget_s": plan.request.train_for_s,
        "epochs": EPOCHS,
        "seed": 0,
        "learning_rate": None,
        "old_share": OLD_SHARE if plan.old else 0.0,
    }
    done = _ask(plan, "train", request, on_event=views.training)
    if not plan.trained.is_dir():  # no state was better than the present draft
        done["step"] = 0
    return done


def _simulated(plan: DistillPlan, views: DistillViews) -> dict[str, Any]:
    """By draft and part, what each held-out answer would have had accepted."""
    views.outlet.notices.say("simulating both drafts on held-out prompts")
    parts = ["test", *(["old-test"] if plan.old else [])]
    folders = {"old": plan.draft, "new": plan.trained if plan.trained.is_dir() else plan.draft}
    return {
        name: _ask(plan, f"simulate-{name}", {"work": "simulate", "draft": str(folder), "parts": parts})[
            "rows"
        ]
        for name, folder in folders.items()
    }


def _simulated_gain(rows: Mapping[str, Any], part: str) -> Gain:
    old, new = (
        [PromptAcceptance(row["id"], row["accepted"], row["drafted"]) for row in rows[name][part]]
        for name in ("old", "new")
    )
    return _gain(old, new)


def _gain(old: Sequence[PromptAcceptance], new: Sequence[PromptAcceptance]) -> Gain:
    """Both rates and their difference. Raises FactError if nothing was drafted."""
    difference = acceptance_gain(new, over=old)
    if difference is None:
        raise FactError("the held-out answers are too short to tell anything", hint="raise `--max-tokens`")
    rates = [sum(row.accepted for row in each) / sum(row.drafted for row in each) for each in (old, new)]
    return Gain(rates[0], rates[1], difference, len({row.prompt for row in new}))


def _proven(found: Distilled, plan: DistillPlan, views: DistillViews) -> Distilled:
    """Serve no draft, the present one and the new one in turns, then verify the new one. Raises SpecserveError."""
    place = plan.place / "bench"
    parts = {"held-out": plan.new.test, **({"old-traffic": plan.old.test} if plan.old else {})}
    files = [
        plan.write(
            f"{name}.jsonl",
            "".join(json.dumps(line_of(each, each.id, each.max_tokens)) + "\n" for each in prompts),
        )
        for name, prompts in parts.items()
    ]
    served = f"alternatives.{ALTERNATIVE}={json.dumps(plan.new_block, ensure_ascii=False)}"
    request = BenchRequest(
        profile=plan.request.profile,
        workloads=tuple(map(str, files)),
        concurrency=_LOAD.get(plan.launch.platform, "8"),
        alternatives=(ALTERNATIVE,),
        budget=_BUDGET.get(plan.launch.platform, "15m"),
        max_tokens=plan.max_tokens,
        settings=(served, "engine.per_request_spec_decode_metrics=detailed"),
    )
    if (place / RUN).is_file():  # with the options that it began with
        result, path = run_benchmark(BenchRequest(), output=None, resumed=str(place), outlet=views.outlet)
    else:
        result, path = run_benchmark(request, output=str(place), resumed=None, outlet=views.outlet)
    passes = read_passes(path)
    names = list(dict.fromkeys(cell.point.workload for cell in result.cells))
    measured, *others = (
        _gain(*(_accepted(passes, arm=arm, workload=name) for arm in (PROFILE, ALTERNATIVE)))
        for name in names
    )
    at = next(cell.point for cell in result.cells if cell.point.workload == names[0])
    beside = speedup(passes, arm=ALTERNATIVE, against=PROFILE, at=at)
    verified = _verified(plan, views, setting=served)
    is_slower = beside is not None and verdict(beside).word == COSTS
    outcome: Outcome = "no_gain_measured" if measured.difference.low <= 0 or is_slower else "better"
    return replace(
        found,
        outcome="faulty" if verified.has_failed else outcome,
        measured=measured,
        measured_old=others[0] if others else None,
        speedups=tuple(each for each in result.comparisons if each.against == BASELINE),
        verified=verified.verdict.word,
        versions={**found.versions, **result.versions},
        notes=(*found.notes, *result.notes),
    )


def _accepted(passes: Sequence[Pass], *, arm: str, workload: str) -> list[PromptAcceptance]:
    """By prompt, what the server says was accepted of its drafts."""
    return [
        PromptAcceptance(request.prompt, request.acceptance.accepted_tokens, request.acceptance.draft_tokens)
        for each in passes
        if each.arm == arm and each.point.workload == workload
        for request in each.requests
        if request.ok and request.acceptance is not None
    ]


def _verified(plan: DistillPlan, views: DistillViews, *, setting: str) -> Any:
    from specserve.measure.verify.run import VerifyRequest
    from specserve.measure.verify.server import run_verification

    request = VerifyRequest(
        temperatures=(0.0, 0.7),
        prompts=plan.new.test[:_MOST_VERIFIED],
        limit_s=_VERIFY_S,
        server=plan.request.profile,
        alternative=ALTERNATIVE,
        settings=(setting,),
    )
    notices = views.outlet.notices
    notices.say("verifying the new draft's output")
    return run_verification(request, notices=notices, progress=views.verify(), start_view=views.start)


def write_alternative(plan: DistillPlan, found: Distilled) -> Distilled:
    """Write the new draft into the profile as an alternative. Raises UsageError, FactError."""
    gain = found.measured or found.simulated
    remark = f"specserve distill: {found.created[:10]}, acceptance {gain.old:.2f} to {gain.new:.2f}"
    write_alternatives(plan.request.profile, {ALTERNATIVE: plan.new_block}, remark=remark)
    return replace(found, alternative=ALTERNATIVE)


CHILD = (sys.executable, "-P", "-m", "specserve.engine.distilling")
_ELSEWHERE = """
import runpy, sys
sys.path.append(sys.argv.pop())
runpy.run_module("specserve.engine.distilling", run_name="__main__")
"""
"""For another Python: its own packages come first, and specserve need not be among them."""
_TICK_S = 0.2
_SAVE_S = 60.0
"""How long a training that is stopped gets to save its state."""


def ask_child(
    request: Mapping[str, Any],
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None,
    python: str | None = None,
) -> dict[str, Any]:
    """The child's last message. `on_event` takes the others. `python`: the interpreter, if it is not this one.

    Raises LaunchError with the log if it dies, Interrupted for a signal, once its state is saved.
    """
    child = JsonChild(_command(python), env={}, log_path=log_path)
    asked_at: float | None = None
    try:
        child.tell(request)
        while True:
            if stop.count and asked_at is None:
                asked_at = time.monotonic()
                child.send(signal.SIGTERM)
            if asked_at is not None and (stop.count > 1 or time.monotonic() - asked_at > _SAVE_S):
                raise _interrupted(stop)
            try:
                message = child.receive(_TICK_S)
            except queue.Empty:
                continue
            if asked_at is not None and (message is None or message["event"] != "done"):
                if message is None or message["event"] == "stopped":
                    raise _interrupted(stop)
                continue
            if message is None or message["event"] == "failed":
                child.wait()
                said = str(message["error"]) if message is not None else None
                raise died(child, str(request["work"]), after_s=child.elapsed_s, said=said)
            if message["event"] == "done":
                return message
            on_event(message)
    finally:
        child.close()


def _command(python: str | None) -> tuple[str, ...]:
    if python is None:
        return CHILD
    return (python, "-P", "-c", _ELSEWHERE, str(Path(__file__).parents[3]))


def _interrupted(stop: StopRequest) -> Interrupted:
    return Interrupted(
        "interrupted; what was learned is kept, and the same command resumes",
        signal_number=stop.signal or signal.SIGINT,
    )
