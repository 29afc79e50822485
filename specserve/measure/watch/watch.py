"""From reading to reading: the window, the verdict, the advice. Does not know how they are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.measure.watch.advice import Advice, Case, advise
from specserve.measure.watch.collapse import Collapse, collapses
from specserve.measure.watch.figures import Figures, figures
from specserve.measure.watch.promises import Kept, Promise, missed, promises
from specserve.measure.watch.stretch import Reading, between
from specserve.measure.watch.verdict import State, Verdict, judge
from specserve.measure.watch.window import Window
from specserve.metrics.acceptance import Acceptance, total
from specserve.profile.schema import Profile

_COLLAPSE_S = 600.0
"""A collapse is looked for in so much of the past: where traffic is thin, 200 drafts take their time."""
_BEFORE_DRAFTS = 1000
"""The time before the window is compared with if it holds this many drafts."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one look came to."""

    at_s: float
    """Seconds since the epoch."""
    verdict: Verdict
    figures: Figures | None = None
    """None until two readings of the same server are there."""
    advice: Advice | None = None
    promises: tuple[Promise, ...] = ()
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
        return self.verdict.state in {State.COLLAPSED, State.MISSED} or bool(missed(self.promises))

    @property
    def is_undecided(self) -> bool:
        """Whether there was too little to tell."""
        open_ones = any(promise.kept is Kept.UNDECIDED for promise in self.promises)
        return open_ones or self.verdict.state in {State.UNDECIDED, State.IDLE, State.UNSEEN}


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

    def look(self) -> Report:
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

    def whole(self) -> Report:
        """The judgement of all that was seen since the begin."""
        if self._trouble is not None and not self._run.stretches:
            return self._unseen(self._trouble, is_final=True)
        return self._report(self._run, is_final=True)

    def _unseen(self, error: SpecserveError, *, is_final: bool = False) -> Report:
        verdict = Verdict(State.UNSEEN, error.message)
        return Report(time.time(), verdict, restarts=self._restarts, is_final=is_final, trouble=error)

    def _report(self, window: Window, *, restarted: bool = False, is_final: bool = False) -> Report:
        assert self._last is not None
        engines = self._last.snapshot.engines.values()
        usage = [engine.kv_cache_usage for engine in engines if engine.kv_cache_usage is not None]
        seen = figures(window.stretches) if window.stretches else None
        promised = promises(self._profile, seen) if self._profile is not None and seen is not None else ()
        collapsed = collapses(self._recent.stretches)
        verdict = self._verdict(seen, promised, collapsed, is_final=is_final)
        advice = None
        if seen is not None:
            since_start = total(engine.counters.acceptance for engine in engines)
            advice = advise(Case(seen, verdict, since_start, self._profile, span_s=self._span_s))
        return Report(
            at_s=time.time(),
            verdict=verdict,
            figures=seen,
            advice=advice,
            promises=promised,
            collapsed=collapsed,
            running_requests=sum(engine.running_requests for engine in engines),
            waiting_requests=sum(engine.waiting_requests for engine in engines),
            kv_cache_usage=max(usage, default=None),
            restarts=self._restarts,
            restarted=restarted,
            is_final=is_final,
            trouble=self._trouble,
        )

    def _verdict(
        self,
        seen: Figures | None,
        promised: tuple[Promise, ...],
        collapsed: tuple[Collapse, ...],
        *,
        is_final: bool,
    ) -> Verdict:
        assert self._last is not None
        speculates = any(engine.speculates for engine in self._last.snapshot.engines.values())
        if seen is None and speculates:
            return Verdict(State.UNDECIDED, "one reading so far: figures come with the next")
        if seen is None or not speculates:
            promised_some = self._profile is not None and self._profile.speculation is not None
            text = "the server does not speculate: it has no speculation counters"
            if promised_some:
                assert self._profile is not None
                place = self._profile.span("speculation")
                return Verdict(State.MISSED, f"{text}, and the profile says `speculation` ({place})")
            return Verdict(State.OFF, text)
        recent = self._window.stretches
        before = None if is_final or not recent else self._before(recent[0].began_s)
        return judge(seen, collapsed=collapsed, promised=promised, before=before)

    def _before(self, at_s: float) -> float | None:
        """The mean acceptance length of the time before; None where that was too short to compare with."""
        earlier: Acceptance = total(part.acceptance for part in self._run.before(at_s))
        return earlier.mean_acceptance_length if earlier.drafts >= _BEFORE_DRAFTS else None


def looks(
    watch: Watch,
    *,
    interval_s: float,
    for_s: float | None = None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """A look each interval; with `for_s` until so much time is over, and then the judgement of all of it."""
    began_s = clock()
    while True:
        yield watch.look()
        passed_s = clock() - began_s
        if for_s is not None and passed_s >= for_s - 1e-3:
            yield watch.whole()
            return
        due_s = (
            passed_s // interval_s + 1
        ) * interval_s  # a slow answer does not make the next looks come faster
        due_s = due_s if for_s is None else min(due_s, for_s)
        wait(max(0.0, due_s - (clock() - began_s)))
