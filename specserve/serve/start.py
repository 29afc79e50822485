"""Waiting for a server: died? stalled? answers? in that order. Does not know what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, figures, health
from specserve.serve.events import OnEvent
from specserve.serve.figures import Figures
from specserve.serve.group import Group
from specserve.serve.logfile import is_disk_full
from specserve.serve.logs import LogTail
from specserve.serve.phases import Phase, next_phase
from specserve.serve.stop import StopRequest

_TICK_S = 0.1
_NEWS_S = 0.5
_SAMPLE_S = 1.0
_WITHOUT_LOG_S = 30.0
"""A vLLM that cannot write its log dies of it, or waits for ever for the process that did."""


@dataclass(slots=True)
class Progress:
    """How far the start has come. `is_stalled`: given up because nothing moved."""

    phase: Phase = Phase.ENGINE
    began_s: float = 0.0
    figures: Figures = field(default_factory=Figures)
    is_stalled: bool = False
    limit_s: float = 0.0
    """How long nothing may move."""


def wait_ready(
    child: Group,
    plan: LaunchPlan,
    *,
    stop: StopRequest,
    emit: OnEvent,
    look: Callable[[], None],
    is_up: Callable[[Phase], bool],
) -> Progress:
    """Until the server is up, dies, stalls, or `stop` is requested; the caller sees which.

    `look` is called now and then while the processes live; what it raises ends the wait. `is_up` is asked often,
    with the phase. There is no limit on the whole.
    """
    progress = Progress(limit_s=plan.stall_timeout_s)
    tail = LogTail(child.log_path)
    clock = health.StallClock(plan.stall_timeout_s)
    sample_s = min(_SAMPLE_S, plan.stall_timeout_s / 4)
    next_news_s = next_sample_s = 0.0
    emit(events.PhaseStarted(progress.phase, child.elapsed_s))
    while not stop.wait(_TICK_S):
        ended = not child.is_running()
        _read_log(tail, progress, now_s=child.elapsed_s, emit=emit)
        if ended:
            return progress
        now_s = child.elapsed_s
        if now_s >= next_sample_s:
            next_sample_s = now_s + sample_s
            look()
            done = health.activity(child.members(), log_bytes=tail.offset)
            if is_disk_full(child.log_path):
                progress.limit_s = min(plan.stall_timeout_s, _WITHOUT_LOG_S)
            progress.is_stalled = clock.is_stalled(done, at_s=now_s, limit_s=progress.limit_s)
            if progress.is_stalled:
                return progress
        if is_up(progress.phase):
            _finish(tail, progress, plan, now_s=child.elapsed_s, emit=emit)
            return progress
        if now_s >= next_news_s:
            next_news_s = now_s + _NEWS_S
            emit(events.PhaseGoesOn(progress.phase, now_s - progress.began_s))
    return progress


def _read_log(tail: LogTail, progress: Progress, *, now_s: float, emit: OnEvent) -> None:
    for line in tail.read():
        progress.figures = figures.add_line(progress.figures, line)
        phase = next_phase(progress.phase, line)
        if phase is not progress.phase:
            emit(events.PhaseEnded(progress.phase, now_s - progress.began_s))
            emit(events.PhaseStarted(phase, now_s))
            progress.phase, progress.began_s = phase, now_s


def _finish(tail: LogTail, progress: Progress, plan: LaunchPlan, *, now_s: float, emit: OnEvent) -> None:
    """The last lines of the start, and from the metrics what a quiet log left out."""
    _read_log(tail, progress, now_s=now_s, emit=emit)
    emit(events.PhaseEnded(progress.phase, now_s - progress.began_s))
    answer = health.get(f"{plan.url}/metrics", timeout_s=2.0) if plan.answers else None
    if answer is not None and answer[0] == 200:
        with contextlib.suppress(ValueError):
            progress.figures = figures.add_metrics(progress.figures, answer[1])
