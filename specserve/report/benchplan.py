"""What a benchmark would do, and how far it is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, TextIO

from specserve.errors import UsageError
from specserve.measure.bench import rundir
from specserve.measure.bench.result import Point
from specserve.report.benchrows import arm_words, where
from specserve.report.console import LiveLine, in_one_line, out, say
from specserve.report.numbers import duration

_START_S = {"cpu": 30.0, "cuda": 180.0}
_TOKENS_PER_S = {"cpu": (40.0, 2), "cuda": (60.0, 64)}
"""Of one request, and of how many at once they add up: assumed, to say minutes before anything ran."""
_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, all assumed: no server was asked."""

    launches: int
    launching_s: float
    measuring_s: float
    requests: int
    """Of every arm together."""


def show(ready: Any, *, format: str, obstacle: str | None = None) -> None:
    """On stdout. `obstacle`: why it would not start here. Raises UsageError for a format that a plan does not have."""
    if format not in {"text", "json"}:
        raise UsageError(f"`--dry-run` has no {format}", hint="`--format json`, or none")
    if format == "json":
        out(json.dumps({**plan_json(ready), "obstacle": obstacle}, indent=2))
        return
    out(plan_text(ready))
    if obstacle is not None:
        out(f"on this machine it would not start: {in_one_line(obstacle)}")


def estimate(ready: Any) -> Estimate:
    """From the sizes alone."""
    wish, platform = ready, _platform(ready)
    launches = sum(
        sum(arm.plan is not None for arm in wish.arms if arm.name in session.arms)
        for session in wish.sessions
    )
    runs = sum(len(session.arms) for session in wish.sessions)
    requests, measuring_s = 0, 0.0
    speed, most = _TOKENS_PER_S[platform]
    tokens = wish.max_tokens or _TOKENS
    for point in wish.points:
        count = _requests(ready, point)
        requests += count * runs
        at_once = min(point.concurrency or most, most)
        seconds = count * tokens / (speed * at_once)
        if point.request_rate:
            seconds = max(seconds, count / point.request_rate)
        measuring_s += seconds * runs
    if wish.budget_s is not None:
        measuring_s = min(measuring_s, wish.budget_s)
    return Estimate(launches, launches * _START_S[platform], measuring_s, requests)


def _requests(ready: Any, point: Point) -> int:
    """To one arm in one launch."""
    from specserve.measure.bench.schedule import deal
    from specserve.measure.workloads.workload import Prompt

    prompts = [Prompt(f"p{number}", 1, text="") for number in range(ready.prompts[point.workload])]
    return sum(map(len, deal(prompts, point, sizes=ready.sizes, launch=0)))


def _platform(ready: Any) -> str:
    return next((arm.plan.platform for arm in ready.arms if arm.plan is not None), "cuda")


def plan_json(ready: Any) -> dict[str, Any]:
    """For scripts."""
    from specserve.plan.launchplan import as_json

    return {
        "version": 1,
        "name": ready.name,
        "arms": [
            {"name": arm.name, "url": arm.url, "launch": as_json(arm.plan) if arm.plan is not None else None}
            for arm in ready.arms
        ],
        "sessions": [{"launch": each.launch, "arms": list(each.arms)} for each in ready.sessions],
        "arms_at_once": ready.fit.at_once,
        "points": [asdict(point) for point in ready.points],
        "blocks": ready.sizes.blocks,
        "estimated": asdict(estimate(ready)),
    }


def plan_text(ready: Any) -> str:
    """80 columns."""
    wish, guess = ready, estimate(ready)
    lines = [f"Benchmark of {in_one_line(ready.name)}: nothing is started", "", "arms"]
    width = max(len(in_one_line(arm.name)) for arm in wish.arms)
    for arm in wish.arms:
        words = in_one_line(arm.url or arm_words(arm.info))
        lines.append(f"  {in_one_line(arm.name).ljust(width)}  {words}")
    lines += ["", f"launches: {guess.launches} ({in_one_line(ready.fit.why)})"]
    lines += _sessions(wish.sessions)
    lines += ["", f"points, {wish.sizes.blocks} blocks each, on every arm in turn"]
    for point in wish.points:
        count = _requests(ready, point)
        lines.append(f"  {in_one_line(where(point))}: {count} requests to each arm in a launch")
    minutes = (guess.launching_s + guess.measuring_s) / 60
    bound = f"; measuring ends after {wish.budget_s / 60:.3g} min" if wish.budget_s is not None else ""
    lines += [
        "",
        f"about {math.ceil(minutes)} min (assumed, not measured: {_start(ready)}){bound}",
    ]
    return "\n".join(lines)


def _sessions(sessions: Sequence[Any]) -> list[str]:
    return [
        f"  {number}. {', '.join(map(in_one_line, each.arms))}{' at the same time' if len(each.arms) > 1 else ''}"
        for number, each in enumerate(sessions, 1)
    ]


def _start(ready: Any) -> str:
    platform = _platform(ready)
    return f"{_START_S[platform]:g} s a launch, {_TOKENS_PER_S[platform][0]:g} tokens/s a request"


_EVERY_S = 15.0


class BenchView:
    """Tells what happens; a context manager that leaves no half line behind."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._line = LiveLine(stream, every_s=_EVERY_S)

    def __enter__(self) -> BenchView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.erase()

    def __call__(self, what: rundir.News) -> None:
        """One piece of news."""
        match what:
            case rundir.Starting():
                self._line.show(f"starting {what.arm}: {what.phase}")
            case rundir.Ready():
                self._say(f"{in_one_line(what.arm)} is ready after {duration(what.took_s)}")
            case rundir.WarmingUp():
                self._line.show(f"warming up {what.arm}")
            case rundir.Noted():
                self._say(f"note: {in_one_line(what.text)}")
            case rundir.Passed():
                self._passed(what)
            case rundir.Stopping():
                self._line.show("stopping the servers")

    def _passed(self, what: rundir.Passed) -> None:
        left = f"about {duration(what.left_s)} left (estimated)" if what.done < what.total else "done"
        self._line.show(
            f"{what.done}/{what.total} {what.arm}, {where(what.point)}: {what.tokens_per_s:.1f} tokens/s; {left}",
            is_last=what.done == what.total,
        )

    def _say(self, line: str) -> None:
        self._line.erase()
        say(line)
