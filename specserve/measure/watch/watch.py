"""From reading to reading: the window, the verdict, the advice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.measure.watch.advice import Advice, Case, advise
from specserve.measure.watch.figures import (
    Collapse,
    Reading,
    Stretch,
    WatchFigures,
    between,
    collapses,
    figures,
    joined,
)
from specserve.measure.watch.verdict import (
    JudgedPromise,
    Kept,
    WatchState,
    WatchVerdict,
    judge,
    missed,
    promises,
)
from specserve.metrics.counters import Acceptance, total_acceptance
from specserve.metrics.prometheus import Metrics, read
from specserve.profile.schema import Profile
from specserve.serve.requests import Endpoint, scrape

Seen_co = TypeVar("Seen_co", covariant=True)

MOST = 120
"""Stretches that are kept. Of more, neighbours are joined: a long time is kept in coarser pieces."""


class Window:
    """Stretches of one server, oldest first. `span_s`: so much of the past; None: everything since the begin."""

    def __init__(self, *, span_s: float | None = None, most: int = MOST) -> None:
        self._span_s = span_s
        self._most = most
        self._least_s = span_s / most if span_s is not None else 0.0
        self._kept: list[Stretch] = []

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What is kept."""
        return tuple(self._kept)

    def add(self, stretch: Stretch) -> None:
        """One more, and away with what is too old. Half a stretch over the span is no reason to lose it."""
        if self._kept and self._kept[-1].seconds < self._least_s:
            stretch = joined([self._kept.pop(), stretch])
        self._kept.append(stretch)
        if self._span_s is not None:
            oldest_s = stretch.ended_s - self._span_s
            older = self._kept[:-1]
            self._kept = [part for part in older if part.began_s + part.seconds / 2 >= oldest_s] + [stretch]
        elif len(self._kept) > self._most:
            pairs = [self._kept[index : index + 2] for index in range(0, len(self._kept), 2)]
            self._kept = [joined(pair) for pair in pairs]

    def clear(self) -> None:
        """Forget it: the server is another one."""
        self._kept = []

    def before(self, at_s: float) -> tuple[Stretch, ...]:
        """Those that had ended by that time."""
        return tuple(part for part in self._kept if part.ended_s <= at_s)


class MetricsSource:
    """Where readings come from. `locate` is asked anew after each failure: a server may come back elsewhere."""

    def __init__(
        self, locate: Callable[[], Endpoint], *, model: str | None = None, timeout_s: float = 5.0
    ) -> None:
        self._locate = locate
        self._model = model
        self._timeout_s = timeout_s
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the server was last looked for."""
        if self._endpoint is None:
            self._endpoint = self._locate()
        return self._endpoint

    def read(self) -> Reading:
        """One reading. Raises TrafficError without an answer, FactError if it cannot be used."""
        try:
            text = scrape(self.endpoint, timeout_s=self._timeout_s)
            at_s = time.monotonic()
            return Reading(at_s, self._of_one_model(read(text)))
        except SpecserveError:
            self._endpoint = None
            raise

    def _of_one_model(self, metrics: Metrics) -> Metrics:
        names = ", ".join(f"`{name}`" for name in metrics.models[:5])
        if self._model is not None and self._model not in metrics.models:
            raise FactError(f"the metrics contain no model `{self._model}`", hint=f"they hold {names}")
        if self._model is None and len(metrics.models) > 1:
            raise FactError(
                f"the metrics contain {len(metrics.models)} models: {names}", hint="`--model` names one"
            )
        return metrics if self._model is None else metrics.of_model(self._model)


_COLLAPSE_S = 600.0
"""A collapse is looked for in so much of the past: where traffic is thin, 200 drafts take their time."""
_BEFORE_DRAFTS = 1000
"""The time before the window is compared with if it holds this many drafts."""


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one look came to."""

    at_s: float
    """Seconds since the epoch."""
    verdict: WatchVerdict
    figures: WatchFigures | None = None
    """None until two readings of the same server are there."""
    advice: Advice | None = None
    promises: tuple[JudgedPromise, ...] = ()
    collapsed: tuple[Collapse, ...] = ()
    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_cache_usage: float | None = None
    restarts: int = 0
    """How often the server was started anew since watching began."""
    restarted: bool = False
    """Whether that happened just now: the window began anew."""
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
        """`read` raises TrafficError where nobody answers, FactError where the answer is of no use."""
        self._read = read
        self._profile = profile
        self._span_s = window_s
        self._window = Window(span_s=window_s)
        self._recent = Window(span_s=_COLLAPSE_S)
        self._run = Window()
        self._last: Reading | None = None
        self._restarts = 0
        self._trouble: SpecserveError | None = None

    def look(self) -> WatchReport:
        """Read once more, and judge the window."""
        restarted = False
        try:
            now = self._read()
        except (TrafficError, FactError) as error:
            self._trouble = error
            return self._unseen(error)
        self._trouble = None
        if self._last is not None:
            stretch = between(self._last, now)
            if stretch is None:
                restarted = True
                self._restarts += 1
                self._window.clear()
                self._recent.clear()
            else:
                self._window.add(stretch)
                self._recent.add(stretch)
                self._run.add(stretch)
        self._last = now
        return self._report(self._window, restarted=restarted)

    def whole(self) -> WatchReport:
        """The judgement of all that was seen since the begin."""
        if self._trouble is not None and not self._run.stretches:
            return self._unseen(self._trouble, is_final=True)
        return self._report(self._run, is_final=True)

    def _unseen(self, error: SpecserveError, *, is_final: bool = False) -> WatchReport:
        verdict = WatchVerdict(WatchState.UNSEEN, error.message)
        return WatchReport(time.time(), verdict, restarts=self._restarts, is_final=is_final, trouble=error)

    def _report(self, window: Window, *, restarted: bool = False, is_final: bool = False) -> WatchReport:
        assert self._last is not None
        metrics = self._last.metrics
        seen = figures(window.stretches) if window.stretches else None
        promised = promises(self._profile, seen) if self._profile is not None and seen is not None else ()
        collapsed = collapses(self._recent.stretches)
        verdict = self._verdict(seen, promised, collapsed, is_final=is_final)
        advice = None
        if seen is not None:
            since_start = total_acceptance(metrics.acceptance.values())
            advice = advise(Case(seen, verdict, since_start, self._profile, span_s=self._span_s))
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
            restarts=self._restarts,
            restarted=restarted,
            is_final=is_final,
            trouble=self._trouble,
        )

    def _verdict(
        self,
        seen: WatchFigures | None,
        promised: tuple[JudgedPromise, ...],
        collapsed: tuple[Collapse, ...],
        *,
        is_final: bool,
    ) -> WatchVerdict:
        assert self._last is not None
        if not self._last.metrics.speculates:
            text = "the server does not speculate: it has no speculation counters"
            if self._profile is None or self._profile.speculation is None:
                return WatchVerdict(WatchState.OFF, text)
            place = self._profile.span("speculation")
            text += f", but the profile has a `speculation` section ({place})"
            return WatchVerdict(WatchState.MISSED, text)
        if seen is None:
            return WatchVerdict(WatchState.UNDECIDED, "one reading so far: figures come with the next")
        recent = self._window.stretches
        before = None if is_final or not recent else self._before(recent[0].began_s)
        return judge(seen, collapsed=collapsed, promised=promised, before=before)

    def _before(self, at_s: float) -> float | None:
        """The mean acceptance length of the time before; None where that was too short to compare with."""
        earlier: Acceptance = total_acceptance(part.acceptance for part in self._run.before(at_s))
        return earlier.mean_acceptance_length if earlier.drafts >= _BEFORE_DRAFTS else None


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
    """A look each interval; with `for_s` until so much time is over, and then the judgement of all of it."""
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
