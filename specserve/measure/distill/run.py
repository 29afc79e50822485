"""A distillation: answers, training, proof. Each stage leaves a file, so that it is done once."""

from __future__ import annotations

import json
import queue
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError, Interrupted
from specserve.measure.bench.figures import speedup
from specserve.measure.bench.plan import BenchRequest
from specserve.measure.bench.result import Comparison
from specserve.measure.bench.run import run_benchmark
from specserve.measure.bench.rundir import RUN, Pass, read_passes
from specserve.measure.bench.variants import BASELINE, PROFILE
from specserve.measure.distill.plan import DistillPlan, line_of
from specserve.measure.drafts import write_alternatives
from specserve.measure.servers import Outlet
from specserve.measure.statistics import COSTS, Estimate, PromptAcceptance, acceptance_gain, verdict
from specserve.serve.batch import GenerateStatus, open_output
from specserve.serve.batch import run as generate
from specserve.serve.causes import died
from specserve.serve.process import JsonChild
from specserve.serve.signals import StopRequest, stop_on_signals

ALTERNATIVE = "distilled"
_ELSEWHERE = """
import runpy, sys
sys.path.append(sys.argv.pop())
runpy.run_module("specserve.engine.distilling", run_name="__main__")
"""
"""For another Python: its own packages come first, and specserve need not be among them."""
_SAVE_S = 60.0
"""How long a training that is stopped gets to save its state."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The acceptance of two drafts on the same held-out prompts."""

    old: float
    """Accepted over drafted tokens of the present draft."""
    new: float
    difference: Estimate
    """New minus old, with its 95 % interval over prompts."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """A whole distillation."""

    name: str
    outcome: Literal["better", "no_gain", "faulty"]
    """`no_gain` without `gain`: nothing was served. `faulty`: `verify` found a fault."""
    draft: str
    """The present draft, as the profile names it."""
    folder: str
    """The new one."""
    k: int
    answers: int
    steps: int
    trained_s: float
    gain: Gain | None = None
    speedups: tuple[Comparison, ...] = ()
    """Each draft against no speculation."""
    verified: str | None = None
    """The verdict of `verify` on the new draft."""
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
    """Answer, train and prove; write a better draft into the profile as an alternative.

    Raises SpecserveError; what was done stays.
    """
    folder, questions, say = plan.folder, plan.questions, views.outlet.notices.say
    answers, done_file = folder / "answers.jsonl", folder / "trained.json"
    if not answers.exists():
        say(f"the target answers {len(questions)} prompts")
        lines = "".join(json.dumps(line) + "\n" for line in questions)
        data = plan.write("questions.jsonl", lines).read_bytes()
        output = open_output(plan.launch, data=data, path=answers, resume=True)
        with closing(output), views.generating() as show:
            generate(plan.launch, data=data, output=output, show=show, say=say)
    with answers.open(encoding="utf-8") as file:
        answered = sum("token_ids" in row for row in map(json.loads, file))
    if answered < len(questions) / 2:
        some = f"the target answered {answered} of {len(questions)} prompts"
        raise FactError(some, hint=f"`{answers}` says why")
    if not done_file.exists():
        say(f"training for {plan.request.train_for_s / 60:.0f} minutes at most")
        request = {
            "draft": str(plan.draft),
            "target": str(plan.target) if plan.target else None,
            "answers": str(answers),
            "out": str(folder),
            "k": plan.k,
            "budget_s": plan.request.train_for_s,
            "epochs": 20,
            "seed": 0,
            "learning_rate": None,
        }
        log, python = folder / "train.log", plan.request.python
        with stop_on_signals() as stop:
            done = ask_child(
                request, log_path=log, stop=stop, on_event=views.training, python=python
            )
        plan.write(done_file.name, json.dumps(done))
    trained = json.loads(done_file.read_text())
    found = Distilled(
        name=plan.profile.name,
        outcome="no_gain",
        draft=str(plan.block.model),
        folder=plan.new_block["model"],
        k=plan.k,
        answers=answered,
        steps=trained["step"],
        trained_s=trained["seconds"],
        notes=plan.traffic.remarks,
    )
    if Path(found.folder).is_dir():  # else no state was better than the present draft
        say("now both drafts are served")
        found = _proven(found, plan, views)
    if found.outcome == "better" and found.gain is not None:
        gained = f"acceptance {found.gain.old:.2f} to {found.gain.new:.2f}"
        remark = f"specserve distill: {date.today()}, {gained}"
        write_alternatives(plan.request.profile, {ALTERNATIVE: plan.new_block}, remark=remark)
    return found


def ask_child(
    request: Mapping[str, Any],
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None,
    python: str | None = None,
) -> dict[str, Any]:
    """The last message of the child that trains; `on_event` takes the others.

    Raises LaunchError with the log if it dies, Interrupted for a signal, once its state is saved.
    """
    command = [sys.executable, "-P", "-m", "specserve.engine.distilling"]
    if python:
        command = [python, "-P", "-c", _ELSEWHERE, str(Path(__file__).parents[3])]
    child, asked_s = JsonChild(command, env={}, log_path=log_path), 0.0
    kept = "interrupted; what was learned is kept, and the same command resumes"
    try:
        child.tell(request)
        while True:
            if stop.count and not asked_s:
                asked_s = time.monotonic()
                child.send(signal.SIGTERM)
            is_over = stop.count > 1 or (asked_s and time.monotonic() - asked_s > _SAVE_S)
            try:
                message = None if is_over else child.receive(0.2)
            except queue.Empty:
                continue
            if message and message["event"] == "done":
                return message
            if asked_s and (message is None or message["event"] == "stopped"):
                raise Interrupted(kept, signal_number=stop.signal or signal.SIGINT)
            if message is None or message["event"] == "failed":
                child.wait()
                said = str(message["error"]) if message else None
                raise died(child, "train", after_s=child.elapsed_s, said=said)
            on_event(message)
    finally:
        child.close()


def _proven(found: Distilled, plan: DistillPlan, views: DistillViews) -> Distilled:
    """Serve no draft, the present one and the new one in turns, then verify the new one."""
    from specserve.measure.verify.run import VerifyRequest
    from specserve.measure.verify.server import run_verification

    is_cpu, place = plan.launch.platform == "cpu", plan.folder / "bench"
    lines = [line_of(each, each.id, each.max_tokens) for each in plan.traffic.test]
    file = plan.write("held-out.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    served = f"alternatives.{ALTERNATIVE}={json.dumps(plan.new_block, ensure_ascii=False)}"
    request = BenchRequest(
        profile=plan.request.profile,
        workloads=(str(file),),
        concurrency="4" if is_cpu else "8",
        alternatives=(ALTERNATIVE,),
        budget="6m" if is_cpu else "15m",
        max_tokens=plan.max_tokens,
        settings=(served, "engine.per_request_spec_decode_metrics=detailed"),
    )
    output, resumed = (None, str(place)) if (place / RUN).is_file() else (str(place), None)
    request = BenchRequest() if resumed else request
    result, path = run_benchmark(request, output=output, resumed=resumed, outlet=views.outlet)
    passes = read_passes(path)
    gain = _gain(passes)
    beside = speedup(passes, variant=ALTERNATIVE, against=PROFILE, at=result.cells[0].point)
    is_slower = beside is not None and verdict(beside).word == COSTS
    views.outlet.notices.say("verifying the new draft's output")
    verified = run_verification(
        VerifyRequest(
            temperatures=(0.0, 0.7),
            prompts=plan.traffic.test[:64],
            server=plan.request.profile,
            alternative=ALTERNATIVE,
            settings=(served,),
        ),
        notices=views.outlet.notices,
        progress=views.verify(),
        start_view=views.start,
    )
    is_better = gain.difference.low > 0 and not is_slower
    return replace(
        found,
        outcome="faulty" if verified.has_failed else "better" if is_better else "no_gain",
        gain=gain,
        speedups=tuple(each for each in result.comparisons if each.against == BASELINE),
        verified=verified.verdict.word,
        notes=(*found.notes, *result.notes),
    )


def _gain(passes: list[Pass]) -> Gain:
    """What the servers say was accepted of both drafts. Raises FactError if nothing was drafted."""
    old, new = (
        [
            PromptAcceptance(
                one.prompt, one.acceptance.accepted_tokens, one.acceptance.draft_tokens
            )
            for each in passes
            if each.variant == variant
            for one in each.requests
            if one.ok and one.acceptance is not None
        ]
        for variant in (PROFILE, ALTERNATIVE)
    )
    difference = acceptance_gain(new, over=old)
    if difference is None:
        raise FactError("the held-out answers are too short to tell anything")
    rates = [
        sum(row.accepted for row in each) / sum(row.drafted for row in each) for each in (old, new)
    ]
    return Gain(rates[0], rates[1], difference)
