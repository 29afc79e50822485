"""Watch one server: read its metrics time after time, and report on the newest window."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specserve.errors import FactError, SpecserveError, TrafficError
from specserve.measure.verdict import Judged, Kept, Verdict
from specserve.measure.watch.verdict import (
    MISSED,
    UNDECIDED,
    UNSEEN,
    Advice,
    Reading,
    Window,
    WindowFigures,
    advise,
    figures,
    judge_promises,
    judge_window,
    verdict_of,
)
from specserve.metrics.prometheus import read
from specserve.profile.load import load_profile
from specserve.serve.records import locate
from specserve.serve.requests import scrape

_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True)
class WatchReport:
    """What one look came to."""

    at_s: float
    verdict: Verdict
    window: WindowFigures | None = None
    """None until there are two readings of the same server."""
    advice: Advice | None = None
    promises: tuple[Judged, ...] = ()
    running_requests: int | None = None
    waiting_requests: int | None = None
    trouble: SpecserveError | None = None
    """Why there is no newest reading."""

    @property
    def is_undecided(self) -> bool:
        """Whether there was too little to tell."""
        is_open = any(promise.kept is Kept.UNDECIDED for promise in self.promises)
        return is_open or self.verdict.word in (UNDECIDED, UNSEEN)


class WatchedServer:
    """A server by its name or URL, and the profile that judges it: the named one, or its own.

    Raises UsageError, FactError, and ProfileError for a profile that was named.
    """

    def __init__(self, server: str | None, *, profile: str | None = None) -> None:
        self.endpoint, self.record = locate(server)
        self.profile = load_profile(profile) if profile is not None else None
        self.no_promises: str | None = None
        """Why those of a detached server's profile are not judged, in one clause."""
        self.profile_error: SpecserveError | None = None
        record = self.record
        if record is None or profile is not None:
            return
        if record.alternative:
            self.no_promises = f"`expect` is not for alternatives: `{record.alternative}`"
        elif record.profile == "-":
            self.no_promises = "the server's profile came from stdin: `--profile` names it"
        else:
            try:
                self.profile = load_profile(record.profile, settings=record.settings)
            except SpecserveError as error:
                self.profile_error = error
                self.no_promises = f"the server's profile cannot be read: {error.message}"

    def read(self) -> Reading:
        """Return one reading. Raises TrafficError without an answer, FactError if it is no use."""
        return Reading(time.monotonic(), read(scrape(self.endpoint.root, timeout_s=_TIMEOUT_S)))


def reports(
    watched: WatchedServer, *, window_s: float, interval_s: float, once: bool = False
) -> Iterator[WatchReport]:
    """Yield a report each interval; with `once`, until a window is over.

    A server that was seen before is waited for. Else raises FactError if the answer is no use, and
    with `once` TrafficError if nobody answers.
    """
    began_s, window = time.monotonic(), Window(window_s)
    newest: WatchReport | None = None
    while True:
        try:
            window.add(watched.read())
            report = newest = _report(watched, window)
        except (TrafficError, FactError) as error:
            if newest is None and (once or isinstance(error, FactError)):
                raise
            unseen = verdict_of(UNSEEN, error.message)
            report = WatchReport(time.time(), unseen, trouble=error)
        is_over = once and time.monotonic() - began_s >= window_s - 1e-3
        # what was seen before is judged if only the last readings failed
        yield replace(newest, trouble=report.trouble) if is_over and newest else report
        if is_over:
            return
        # a slow answer does not make the next looks come faster
        passed_s = time.monotonic() - began_s
        due_s = (passed_s // interval_s + 1) * interval_s
        time.sleep(max(0.0, (min(due_s, window_s) if once else due_s) - passed_s))


def _report(watched: WatchedServer, window: Window) -> WatchReport:
    profile, metrics = watched.profile, window.readings[-1].metrics
    report = WatchReport(
        at_s=time.time(),
        verdict=verdict_of(UNDECIDED, "one reading: figures need two"),
        running_requests=metrics.running_requests,
        waiting_requests=metrics.waiting_requests,
    )
    if profile is not None and profile.speculation is not None and not metrics.speculates:
        text = f"the server does not speculate, but {profile.span('speculation')} does"
        text += ": `specserve up` without `--alternative baseline` starts it so"
        return replace(report, verdict=verdict_of(MISSED, text))
    if len(window.readings) < 2:
        return report
    seen = figures(window.readings)
    promises = judge_promises(profile, seen) if profile is not None else ()
    verdict = judge_window(window.readings, seen, promises=promises)
    advice = advise(seen, verdict.word)
    return replace(report, verdict=verdict, window=seen, advice=advice, promises=promises)
