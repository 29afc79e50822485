"""What a benchmark would do, and how far it is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from specserve.errors import UsageError
from specserve.measure.bench import rundir
from specserve.measure.bench.plan import BenchPlan, deal
from specserve.measure.bench.result import Point
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launchplan import as_json
from specserve.report.bench import arm_words, where
from specserve.report.console import LiveLine, in_one_line, out, say
from specserve.report.numbers import duration

_SPEEDS = {"cpu": (30.0, 40.0, 2), "cuda": (180.0, 60.0, 64)}
"""Assumed, to say minutes before anything ran: seconds of a launch, tokens/s of one request, requests that add up."""
_TOKENS = 256


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    """Seconds, all assumed: no server was asked. `requests`: of every arm together."""

    launches: int
    launching_s: float
    measuring_s: float
    requests: int


def show(plan: BenchPlan, *, format: str, obstacle: str | None = None) -> None:
    """On stdout. `obstacle`: why it would not start here. Raises UsageError for a format that a plan does not have."""
    if format not in {"text", "json"}:
        raise UsageError(f"`--dry-run` cannot print {format}", hint="`--format json`, or none")
    if format == "json":
        out(json.dumps({**_plan_json(plan), "obstacle": obstacle}, indent=2))
        return
    out(_plan_text(plan))
    if obstacle is not None:
        out(f"on this machine it would not start: {in_one_line(obstacle)}")


def _platform(plan: BenchPlan) -> str:
    return next((arm.plan.platform for arm in plan.arms if arm.plan is not None), "cuda")


def _estimate(plan: BenchPlan) -> BenchEstimate:
    """From the sizes alone."""
    launch_s, speed, most = _SPEEDS[_platform(plan)]
    launched = {arm.name for arm in plan.arms if arm.plan is not None}
    launches = sum(name in launched for session in plan.sessions for name in session.arms)
    runs = sum(len(session.arms) for session in plan.sessions)
    requests, measuring_s = 0, 0.0
    for point in plan.points:
        count = _requests(plan, point)
        seconds = count * (plan.max_tokens or _TOKENS) / (speed * min(point.concurrency or most, most))
        if point.request_rate:
            seconds = max(seconds, count / point.request_rate)
        requests, measuring_s = requests + count * runs, measuring_s + seconds * runs
    if plan.budget_s is not None:
        measuring_s = min(measuring_s, plan.budget_s)
    return BenchEstimate(launches, launches * launch_s, measuring_s, requests)


def _requests(plan: BenchPlan, point: Point) -> int:
    """To one arm in one launch."""
    prompts = [Prompt(f"p{number}", 1, text="") for number in range(plan.prompts[point.workload])]
    return sum(map(len, deal(prompts, point, count=plan.blocks, launch=0)))


def _plan_json(plan: BenchPlan) -> dict[str, Any]:
    return {
        "version": 1,
        "name": plan.name,
        "arms": [
            {"name": arm.name, "url": arm.url, "launch": as_json(arm.plan) if arm.plan is not None else None}
            for arm in plan.arms
        ],
        "sessions": [{"launch": each.launch, "arms": list(each.arms)} for each in plan.sessions],
        "arms_at_once": plan.fit.at_once,
        "points": [asdict(point) for point in plan.points],
        "blocks": plan.blocks,
        "estimated": asdict(_estimate(plan)),
    }


def _plan_text(plan: BenchPlan) -> str:
    """80 columns."""
    guess, (launch_s, speed, _) = _estimate(plan), _SPEEDS[_platform(plan)]
    width = max(len(in_one_line(arm.name)) for arm in plan.arms)
    lines = [f"Benchmark of {in_one_line(plan.name)}: nothing is started", "", "variants"]
    for arm in plan.arms:
        words = in_one_line(arm.url or arm_words(arm.info))
        lines.append(f"  {in_one_line(arm.name).ljust(width)}  {words}")
    lines += ["", f"launches: {guess.launches} ({in_one_line(plan.fit.why)})"]
    for number, session in enumerate(plan.sessions, 1):
        together = " at the same time" if len(session.arms) > 1 else ""
        lines.append(f"  {number}. {', '.join(map(in_one_line, session.arms))}{together}")
    lines += ["", f"points, {plan.blocks} blocks each, on every variant in turn"]
    for point in plan.points:
        count = _requests(plan, point)
        lines.append(f"  {in_one_line(where(point))}: {count} requests to each variant in a launch")
    minutes = math.ceil((guess.launching_s + guess.measuring_s) / 60)
    assumed = f"assumed, not measured: {launch_s:g} s a launch, {speed:g} tokens/s a request"
    bound = f"; measuring ends after {plan.budget_s / 60:.3g} min" if plan.budget_s is not None else ""
    return "\n".join([*lines, "", f"about {minutes} min ({assumed}){bound}"])


class BenchView:
    """Shows what happens; a context manager that leaves no half line behind."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._line = LiveLine(stream, every_s=15.0)

    def __enter__(self) -> BenchView:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._line.erase()

    def __call__(self, what: rundir.News) -> None:
        """One piece of news."""
        match what:
            case rundir.Doing():
                self._line.show(what.text)
            case rundir.Noted():
                self._line.erase()
                say(in_one_line(what.text))
            case rundir.Passed():
                is_last = what.done == what.total
                left = "done" if is_last else f"about {duration(what.left_s)} left (estimated)"
                figures = f"{where(what.point)}: {what.tokens_per_s:.1f} tokens/s; {left}"
                self._line.show(f"{what.done}/{what.total} {what.arm}, {figures}", is_last=is_last)
