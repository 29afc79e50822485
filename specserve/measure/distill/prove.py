"""Old against new draft on held-out prompts: `bench` measures both, `verify` looks for faults of the new one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.errors import FactError
from specserve.measure.bench.arms import BASELINE, PROFILE
from specserve.measure.bench.figures import speedup
from specserve.measure.bench.plan import BenchRequest
from specserve.measure.bench.result import Comparison, Verdict
from specserve.measure.bench.run import run_benchmark
from specserve.measure.bench.rundir import RUN, read_passes
from specserve.measure.distill.plan import DistillPlan
from specserve.measure.distill.result import Gain, gain_of
from specserve.measure.run import Outlet
from specserve.measure.statistics import PromptAcceptance, verdict
from specserve.measure.workloads.workload import Prompt
from specserve.serve.files import write_anew

if TYPE_CHECKING:
    from specserve.measure.bench.rundir import Pass

_ALTERNATIVE = "distilled"
_BUDGET = {"cpu": "6m", "cuda": "15m"}
_LOAD = {"cpu": "4", "cuda": "8"}
_VERIFY_S = 60.0
_MOST_VERIFIED = 64


@dataclass(frozen=True, slots=True)
class Proof:
    """What serving both drafts says."""

    measured: Gain
    measured_old: Gain | None
    speedups: tuple[Comparison, ...]
    is_slower: bool
    """Whether the new draft is surely slower than the present one."""
    verified: str
    is_faulty: bool
    versions: dict[str, str]
    notes: tuple[str, ...]


def prove(
    plan: DistillPlan, *, outlet: Outlet, verify: Callable[[], Any], start: Callable[..., Any]
) -> Proof:
    """Serve no draft, the present one and the new one in turns, then verify the new one. Raises SpecserveError."""
    place = plan.place / "bench"
    workloads = _workloads(plan)
    request = BenchRequest(
        profile=plan.request.profile,
        workloads=tuple(map(str, workloads)),
        concurrency=_LOAD.get(plan.launch.platform, "8"),
        alternatives=(_ALTERNATIVE,),
        budget=_BUDGET.get(plan.launch.platform, "15m"),
        max_tokens=plan.max_tokens,
        settings=_settings(plan),
    )
    is_begun = (place / RUN).is_file()
    if is_begun:  # with the options that it began with
        result, path = run_benchmark(BenchRequest(), output=None, resumed=str(place), outlet=outlet)
    else:
        result, path = run_benchmark(request, output=str(place), resumed=None, outlet=outlet)
    passes = read_passes(path)
    names = [cell.point.workload for cell in result.cells]
    new, old = names[0], next((name for name in names if name != names[0]), None)
    gains = {
        name: gain_of(
            _accepted(passes, arm=PROFILE, workload=name), _accepted(passes, arm=_ALTERNATIVE, workload=name)
        )
        for name in filter(None, (new, old))
    }
    at = next(cell.point for cell in result.cells if cell.point.workload == new)
    beside = speedup(passes, arm=_ALTERNATIVE, against=PROFILE, at=at)
    verified = _verified(plan, outlet=outlet, progress=verify(), start_view=start)
    return Proof(
        measured=gains[new],
        measured_old=gains[old] if old else None,
        speedups=tuple(each for each in result.comparisons if each.against == BASELINE),
        is_slower=beside is not None and verdict(beside) is Verdict.COSTS,
        verified=str(verified.verdict),
        is_faulty=verified.has_failed,
        versions=dict(result.versions),
        notes=result.notes,
    )


def _settings(plan: DistillPlan) -> tuple[str, ...]:
    """The profile with the new draft as an alternative, and with acceptance for each request."""
    block = {**dict(plan.block.keys), "model": str((plan.place / "draft").resolve())}
    block.pop("revision", None)
    text = json.dumps(block, ensure_ascii=False)
    return (f"alternatives.{_ALTERNATIVE}={text}", "engine.per_request_spec_decode_metrics=detailed")


def _workloads(plan: DistillPlan) -> list[Path]:
    """The held-out prompts as files that `bench` reads."""
    parts = {"held-out": plan.new.test, **({"old-traffic": plan.old.test} if plan.old else {})}
    found = []
    for name, prompts in parts.items():
        file = plan.place / f"{name}.jsonl"
        lines = "".join(json.dumps(_line(prompt)) + "\n" for prompt in prompts)
        try:
            write_anew(file, lines.encode())
        except OSError as error:
            raise FactError(f"cannot write `{file}`: {error.strerror}") from error
        found.append(file)
    return found


def _line(prompt: Prompt) -> dict[str, Any]:
    said: dict[str, Any] = {"id": prompt.id, "max_tokens": prompt.max_tokens}
    if prompt.messages is None:
        return {**said, "prompt": prompt.text}
    return {**said, "messages": [dict(part) for part in prompt.messages]}


def _accepted(passes: Sequence[Pass], *, arm: str, workload: str) -> list[PromptAcceptance]:
    """By prompt, what the server says was accepted of its drafts."""
    return [
        PromptAcceptance(request.prompt, request.acceptance.accepted_tokens, request.acceptance.draft_tokens)
        for each in passes
        if each.arm == arm and each.point.workload == workload
        for request in each.requests
        if request.ok and request.acceptance is not None
    ]


def _verified(plan: DistillPlan, *, outlet: Outlet, progress: Any, start_view: Callable[..., Any]) -> Any:
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.server import VerifyRequest, run_verification

    request = VerifyRequest(
        samplings=(Sampling.of(0.0, 1.0, 0), Sampling.of(0.7, 1.0, 0)),
        prompts=plan.new.test[:_MOST_VERIFIED],
        limit_s=_VERIFY_S,
        server=plan.request.profile,
        alternative=_ALTERNATIVE,
        settings=_settings(plan)[:1],
    )
    outlet.notices.say("verifying the new draft's output")
    return run_verification(request, notices=outlet.notices, progress=progress, start_view=start_view)
