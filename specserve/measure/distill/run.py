"""A distillation: answers, training, proof. Each stage leaves a file, so that it is done once."""

from __future__ import annotations

import json
import queue
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from specserve.errors import FactError, Interrupted
from specserve.measure.bench.plan import PROFILE, BenchRequest
from specserve.measure.bench.run import run_benchmark
from specserve.measure.bench.rundir import RUN, read_passes
from specserve.measure.bench.summary import sample, speedup
from specserve.measure.distill.plan import DistillPlan, line_of
from specserve.measure.intervals import Estimate, rate, ratio
from specserve.measure.servers import Outlet
from specserve.measure.verdict import COSTS, verdict
from specserve.profile.writer import write_alternatives
from specserve.serve.batch import generate
from specserve.serve.process import JsonChild, resolve_env
from specserve.serve.signals import StopRequest, stop_on_signals

ALTERNATIVE = "distilled"


@dataclass(frozen=True, slots=True)
class Proof:
    """Both drafts, served in turns on the held-out prompts."""

    old_acceptance: float
    """Accepted over drafted tokens of the present draft."""
    new_acceptance: float
    gain: Estimate
    speedup: Estimate | None
    """Of the new draft over the present one."""


@dataclass(frozen=True, slots=True)
class Distilled:
    """A whole distillation; its fields are the keys of result.json."""

    name: str
    is_better: bool
    folder: str
    """The new draft."""
    proof: Proof | None = None
    """None: no state of the training was better on the validation prompts, and none was served."""
    notes: tuple[str, ...] = ()


def run_distillation(
    plan: DistillPlan,
    *,
    outlet: Outlet,
    generating: Callable[[], AbstractContextManager[Callable[[str], None]]],
    training: Callable[[Mapping[str, Any]], None],
) -> Distilled:
    """Answer, train, prove; a better draft becomes an alternative. Raises SpecserveError.

    `generating` and `training` show how far these two are.
    """
    folder, questions, say = plan.folder, plan.questions, outlet.notices.say
    answers, done_file = folder / "answers.jsonl", folder / "trained.json"
    parts = (("train on", plan.traffic.train), ("choose by", plan.traffic.validation))
    told = ", ".join(f"{len(some)} prompts to {purpose}" for purpose, some in parts)
    say(f"{told}, {len(plan.traffic.test)} held out: {folder}")
    if not answers.exists():
        say("the target answers them")
        lines = "".join(json.dumps(line) + "\n" for line in questions)
        data = plan.write("questions.jsonl", lines).read_bytes()
        with generating() as show:
            generate(plan.launch, data=data, path=answers, show=show, say=say)
    with answers.open(encoding="utf-8") as file:
        answered = sum("token_ids" in row for row in map(json.loads, file))
    if answered < len(questions) / 2:
        some = f"the target answered {answered} of {len(questions)} prompts"
        raise FactError(some, hint=f"`{answers}` says why")
    if not done_file.exists():
        say(f"training for {plan.request.train_for_s / 60:.0f} minutes at most")
        request = {
            "draft": str(plan.draft),
            "answers": str(answers),
            "out": str(folder),
            "budget_s": plan.request.train_for_s,
            "epochs": 20,
        }
        with stop_on_signals() as stop:
            done = train(request, log_path=folder / "train.log", stop=stop, on_event=training)
        plan.write(done_file.name, json.dumps(done))
    found = Distilled(
        name=plan.profile.name,
        is_better=False,
        folder=plan.new_block["model"],
        notes=plan.traffic.remarks,
    )
    if not Path(found.folder).is_dir():
        return found
    say("now both drafts are served")
    found = _proven(found, plan, outlet=outlet)
    if found.is_better and found.proof is not None:
        rates = f"{found.proof.old_acceptance:.2f} to {found.proof.new_acceptance:.2f}"
        remark = f"specserve distill: {date.today()}, acceptance {rates}"
        write_alternatives(plan.request.profile, {ALTERNATIVE: plan.new_block}, remark=remark)
    return found


def train(
    request: Mapping[str, Any],
    *,
    log_path: Path,
    stop: StopRequest,
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """The last message of the child that trains; `on_event` takes the others.

    Raises LaunchError with the log if it dies, Interrupted for a signal.
    """
    command = [sys.executable, "-P", "-m", "specserve.engine.distilling"]
    child = JsonChild(command, env=resolve_env({}), log_path=log_path)
    kept = "interrupted; the answers are kept, and the same command trains anew"
    try:
        child.tell(request)
        while not stop.count:
            try:
                message = child.receive(0.2)
            except queue.Empty:
                continue
            if message and message["event"] == "done":
                return message
            if message is None or message["event"] == "failed":
                child.wait()
                said = str(message["error"]) if message else ""
                raise child.death("train", said=said)
            on_event(message)
        raise Interrupted(kept, exit_code=128 + (stop.signal or signal.SIGINT))
    finally:
        child.close()


def _proven(found: Distilled, plan: DistillPlan, *, outlet: Outlet) -> Distilled:
    """Serve no draft, the present and the new one on what was held out. Raises SpecserveError."""
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
        settings=(served,),
    )
    if (place / RUN).is_file():
        result, path = run_benchmark(BenchRequest(), output=None, resumed=str(place), outlet=outlet)
    else:
        result, path = run_benchmark(request, output=str(place), resumed=None, outlet=outlet)
    passes = read_passes(path)
    old, new = (
        [
            sample(each, seen.accepted_tokens, seen.draft_tokens)
            for each in passes
            if each.variant == name and (seen := each.acceptance) is not None
        ]
        for name in (PROFILE, ALTERNATIVE)
    )
    gain, old_rate, new_rate = ratio(new, against=old), rate(old), rate(new)
    if gain is None or old_rate is None or new_rate is None:
        raise FactError("the held-out answers are too short to tell anything")
    faster = speedup(passes, variant=ALTERNATIVE, against=PROFILE, at=result.cells[0].point)
    is_slower = faster is not None and verdict(faster).word == COSTS
    return replace(
        found,
        is_better=gain.bounds()[0] > 1 and not is_slower,
        proof=Proof(
            old_rate.value,
            new_rate.value,
            gain.estimate,
            faster.estimate if faster is not None else None,
        ),
    )
