"""From reading to reading: the window, the verdict, the advice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from specserve.errors import FactError, SpecserveError
from specserve.measure.watch.advice import Advice, Case, advise
from specserve.measure.watch.figures import Collapse, WatchFigures, collapses, figures
from specserve.measure.watch.verdict import (
    OFF,
    JudgedPromise,
    Kept,
    WatchState,
    WatchVerdict,
    judge,
    missed,
    promises,
)
from specserve.measure.watch.window import Reading, Readings, Window
from specserve.metrics.counters import total_acceptance
from specserve.metrics.prometheus import Metrics, read
from specserve.profile.schema import Profile
from specserve.serve.requests import Endpoint, scrape

Seen_co = TypeVar("Seen_co", covariant=True)


class MetricsSource:
    """Where readings come from. `locate` is asked again after each failure: a server may come back elsewhere."""

    def __init__(
        self, locate: Callable[[], Endpoint], *, model: str | None = None, timeout_s: float = 5.0
    ) -> None:
        self._locate = locate
        self._model = model
        self._timeout_s = timeout_s
        self.endpoint: Endpoint | None = None
        """Where the server was last found."""

    def read(self) -> Reading:
        """Return one reading. Raises TrafficError without an answer, FactError if it cannot be used."""
        self.endpoint = self.endpoint or self._locate()
        try:
            text = scrape(self.endpoint, timeout_s=self._timeout_s)
            return Reading(time.monotonic(), _of_model(read(text), self._model))
        except SpecserveError:
            self.endpoint = None
            raise


def _of_model(metrics: Metrics, model: str | None) -> Metrics:
    names = ", ".join(f"`{name}`" for name in metrics.models[:5])
    if model is not None and model not in metrics.models:
        raise FactError(f"the metrics contain no model `{model}`", hint=f"they hold {names}")
    if model is None and len(metrics.models) > 1:
        many = f"the metrics contain {len(metrics.models)} models: {names}"
        raise FactError(many, hint="`--model` names one")
    return metrics if model is None else metrics.of_model(model)


_COLLAPSE_S = 600.0
"""A collapse is looked for in this much of the past: if traffic is thin, 200 drafts take their time."""
_BEFORE_DRAFTS = 1000
"""The time before the window is compared with if it holds this many drafts."""


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one look came to."""

    at_s: float
    """Seconds since the epoch."""
    verdict: WatchVerdict
    figures: WatchFigures | None = None
    """None until there are two readings of the same server."""
    advice: Advice | None = None
    promises: tuple[JudgedPromise, ...] = ()
    collapsed: tuple[Collapse, ...] = ()
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_cache_usage: float | None = None
    restarts: int = 0
    """How often the server restarted since watching began."""
    restarted: bool = False
    """Whether that happened just now: a new window begins."""
    is_final: bool = False
    """Of the whole time, not of the window."""
    trouble: SpecserveError | None = None
    """Why there is no reading."""

    @property
    def has_failed(self) -> bool:
        """Whether speculation does not do what it must: dead, or a promise missed, or not there as promised."""
        return self.verdict.state in {WatchState.COLLAPSED, WatchState.MISSED} or bool(missed(self.promises))

    @property
    def is_undecided(self) -> bool:
        """Whether there was too little to tell."""
        open_ones = any(promise.kept is Kept.UNDECIDED for promise in self.promises)
        return open_ones or self.verdict.state in {WatchState.UNDECIDED, WatchState.IDLE, WatchState.UNSEEN}


class Watch:
    """What was seen of one server so far. Its memory is bounded, however long it lives."""

    def __init__(
        self, read: Callable[[], Reading], *, window_s: float = 60.0, profile: Profile | None = None
    ) -> None:
        """`read` raises TrafficError if nobody answers, FactError if the answer is of no use."""
        self._readings = Readings(read)
        self._profile = profile
        self._window, self._recent, self._run = Window(span_s=window_s), Window(span_s=_COLLAPSE_S), Window()

    def look(self) -> WatchReport:
        """Read once more, and judge the window."""
        stretch = self._readings.step()
        if self._readings.restarted:
            self._window.clear()
            self._recent.clear()
        if stretch is not None:
            for window in (self._window, self._recent, self._run):
                window.add(stretch)
        if self._readings.trouble is not None:
            return self._unseen(self._readings.trouble)
        return self._report(self._window)

    def whole(self) -> WatchReport:
        """Judge all that was seen since the begin."""
        if self._readings.trouble is not None and not self._run.stretches:
            return replace(self._unseen(self._readings.trouble), is_final=True)
        return replace(self._report(self._run), is_final=True)

    def _unseen(self, error: SpecserveError) -> WatchReport:
        verdict = WatchVerdict(WatchState.UNSEEN, error.message)
        return WatchReport(time.time(), verdict, restarts=self._readings.restarts, trouble=error)

    def _report(self, window: Window) -> WatchReport:
        assert self._readings.last is not None
        metrics = self._readings.last.metrics
        seen = figures(window.stretches) if window.stretches else None
        promised = promises(self._profile, seen) if self._profile is not None and seen is not None else ()
        collapsed = collapses(self._recent.stretches)
        if not metrics.speculates:
            verdict = self._off()
        elif seen is None:
            text = "one reading so far: figures come with the next"
            verdict = WatchVerdict(WatchState.UNDECIDED, text)
        else:
            earlier = self._run.acceptance_before(seen.whole.began_s)
            before = earlier.mean_acceptance_length if earlier.drafts >= _BEFORE_DRAFTS else None
            verdict = judge(seen, collapsed=collapsed, promised=promised, before=before)
        advice = None
        if seen is not None:
            since_start = total_acceptance(metrics.acceptance.values())
            advice = advise(Case(seen, verdict, since_start, self._profile, span_s=self._window.span_s))
        return WatchReport(
            at_s=time.time(),
            verdict=verdict,
            figures=seen,
            advice=advice,
            promises=promised,
            collapsed=collapsed,
            running_requests=metrics.running_requests,
            waiting_requests=metrics.waiting_requests,
            kv_cache_usage=metrics.kv_cache_usage,
            restarts=self._readings.restarts,
            restarted=self._readings.restarted,
            trouble=self._readings.trouble,
        )

    def _off(self) -> WatchVerdict:
        if self._profile is None or self._profile.speculation is None:
            return OFF
        place = self._profile.span("speculation")
        text = f"{OFF.sentence}, but the profile has a `speculation` section ({place})"
        return WatchVerdict(WatchState.MISSED, text)


class Looking(Protocol[Seen_co]):
    """What is looked at again and again."""

    def look(self) -> Seen_co:
        """Read once more and judge."""

    def whole(self) -> Seen_co:
        """Judge all that was seen."""


def looks(
    watch: Looking[Seen_co],
    *,
    interval_s: float,
    for_s: float | None = None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Seen_co]:
    """Yield a look each interval; with `for_s` until that time is over, and then the judgement of all of it."""
    began_s = clock()
    while True:
        yield watch.look()
        passed_s = clock() - began_s
        if for_s is not None and passed_s >= for_s - 1e-3:
            yield watch.whole()
            return
        # a slow answer does not make the next looks come faster
        due_s = (passed_s // interval_s + 1) * interval_s
        due_s = due_s if for_s is None else min(due_s, for_s)
        wait(max(0.0, due_s - (clock() - began_s)))
