"""A server that is watched: how it is found and read, and what each look at it comes to."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from specserve.errors import FactError, Interrupted, SpecserveError, TrafficError, UsageError
from specserve.measure.watch.advice import Advice, Case, advise
from specserve.measure.watch.figures import (
    Collapse,
    Reading,
    Stretch,
    WatchFigures,
    Window,
    between,
    collapses,
    figures,
)
from specserve.measure.watch.verdict import (
    FALLEN_SHARE,
    OFF,
    JudgedPromise,
    Kept,
    WatchState,
    WatchVerdict,
    judge,
    missed,
    promises,
)
from specserve.metrics.counters import total_acceptance
from specserve.metrics.prometheus import Metrics, read
from specserve.profile.schema import Profile
from specserve.serve.requests import Endpoint, scrape

if TYPE_CHECKING:
    from specserve.serve.detached.registry import Record


class Readings:
    """The readings of one server, one after the other."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        """`read` raises TrafficError if nobody answers, FactError if the answer cannot be used."""
        self._read = read
        self.last: Reading | None = None
        self.restarts = 0
        self.restarted = False
        """Whether the newest reading is the first one after a restart."""
        self.trouble: SpecserveError | None = None
        """Why there is no newest reading."""

    def step(self) -> Stretch | None:
        """Read once more; return the stretch since the last reading, None if there is none."""
        self.restarted, self.trouble = False, None
        try:
            now = self._read()
        except (TrafficError, FactError) as error:
            self.trouble = error
            return None
        before, self.last = self.last, now
        found = between(before, now) if before is not None else None
        self.restarted = before is not None and found is None
        self.restarts += self.restarted
        return found


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
        self._window_s = window_s
        self._newest: WatchReport | None = None
        self._reference: float | None = None

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
        report = self._report(self._window)
        self._newest = report
        return report

    def whole(self) -> WatchReport:
        """Judge all that was seen since the begin."""
        if self._readings.trouble is not None and not self._run.stretches:
            return replace(self._unseen(self._readings.trouble), is_final=True)
        report = replace(self._report(self._run), is_final=True)
        newest = self._newest
        if newest is None or newest.verdict.state is not WatchState.FALLEN or report.has_failed:
            return report
        sentence = f"{report.verdict.sentence}; in the last {self._window_s:g} s, {newest.verdict.sentence}"
        return replace(report, verdict=replace(report.verdict, sentence=sentence), advice=newest.advice)

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
            before = self._before(seen) if window is self._window else None
            verdict = judge(seen, collapsed=collapsed, promised=promised, before=before)
        advice = None
        if seen is not None:
            since_start = total_acceptance(metrics.acceptance.values())
            keys = tuple(promise.key for promise in missed(promised))
            advice = advise(Case(seen, verdict, since_start, self._profile, self._window.span_s, keys))
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

    def _before(self, seen: WatchFigures) -> float | None:
        """The mean acceptance length until it fell: the time for which it lies under the share does not count."""
        length = seen.mean_acceptance_length
        if self._reference is not None and (length is None or length < FALLEN_SHARE * self._reference):
            return self._reference
        earlier = self._run.acceptance_before(seen.whole.began_s)
        if earlier.drafts >= _BEFORE_DRAFTS:
            self._reference = earlier.mean_acceptance_length
        return self._reference

    def _off(self) -> WatchVerdict:
        if self._profile is None or self._profile.speculation is None:
            return OFF
        place = self._profile.span("speculation")
        text = f"{OFF.sentence}, but the profile has a `speculation` section ({place})"
        return WatchVerdict(WatchState.MISSED, text)


def looks(
    watch: Watch,
    *,
    interval_s: float,
    for_s: float | None = None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[WatchReport]:
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


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Which server to watch, and how. Without `for_s` it ends with Ctrl-C."""

    server: str | None
    profile: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    interval_s: float = 5.0
    window_s: float = 60.0
    for_s: float | None = None


class WatchedServer:
    """A server by its name or URL, and the profile that judges it. Raises UsageError, ProfileError, FactError."""

    def __init__(self, request: WatchRequest) -> None:
        self.request = request
        self._server = request.server
        self.record: Record | None = None
        self.endpoint = self._find()
        self.is_other_arm = False
        """Whether it is an alternative of its profile, or its baseline: those promise nothing."""
        self.profile = self._profile(request.profile)
        self.source = MetricsSource(self.locate, model=request.model)

    def _find(self) -> Endpoint:
        from specserve.serve.detached.registry import locate
        from specserve.serve.requests import endpoint

        url, self.record = locate(self._server)
        self._server = self.record.name if self.record is not None else url
        return endpoint(url, api_key_env=self.request.api_key_env)

    def locate(self) -> Endpoint:
        """Return where it is by now: a detached server that was restarted may have another port."""
        with contextlib.suppress(SpecserveError):  # it was stopped: watch waits for it at its old address
            self.endpoint = self._find()
        return self.endpoint

    def _profile(self, path: str | None) -> Profile | None:
        from specserve.profile.load import load_profile, with_alternative

        if path is not None:
            return load_profile(path)
        record = self.record
        if record is None or record.profile == "-":
            return None
        with contextlib.suppress(SpecserveError):  # moved or changed since; nobody named it here
            profile = load_profile(record.profile, settings=record.arm.settings)
            is_baseline = record.method is None and profile.speculation is not None
            self.is_other_arm = record.arm.alternative is not None or is_baseline
            if not self.is_other_arm:
                return profile
            served = with_alternative(profile, record.arm.alternative, baseline=is_baseline)
            return replace(served, expect=())
        return None

    @property
    def labels(self) -> dict[str, str]:
        """The names of the deployment: profile and fingerprint, empty if they are not known."""
        name = self.profile.name if self.profile is not None else self.record.name if self.record else ""
        if self.record is not None:
            return {"profile": name, "fingerprint": self.record.fingerprint}
        if self.profile is None:
            return {"profile": name, "fingerprint": ""}
        from specserve.plan.locking import at_lock
        from specserve.profile.schema import fingerprint

        locked, _ = at_lock(self.profile, use_lock=True, needed=False)
        return {"profile": name, "fingerprint": fingerprint(locked)}

    def reports(self) -> Iterator[WatchReport]:
        """Watch until the time is over: a report for each look, and the final one. Raises UsageError.

        The iterator raises Interrupted on SIGTERM, KeyboardInterrupt.
        """
        request = self.request
        if request.interval_s > min(request.window_s, request.for_s or request.window_s):
            raise UsageError(
                f"`--interval` is {request.interval_s:g} s, which is longer than the time that is measured",
                hint="a measurement needs two readings: use `--interval 1s`, or a longer window",
            )
        watch = Watch(self.source.read, window_s=request.window_s, profile=self.profile)
        return self._looked_at(watch)

    def _looked_at(self, watch: Watch) -> Iterator[WatchReport]:
        with ended_by_sigterm():
            yield from looks(watch, interval_s=self.request.interval_s, for_s=self.request.for_s)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A terminal gets its cursor back also if a service manager stops the command."""

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", signal_number=number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
