"""A canary against the server that it may replace: better, worse or not decided, from the counters of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from specserve.errors import SpecserveError, UsageError
from specserve.measure.bench.result import Interval
from specserve.measure.statistics import PairedDifference, share_difference
from specserve.measure.values import numbers
from specserve.measure.watch.figures import Reading, Stretch, joined
from specserve.measure.watch.watch import Readings, WatchedServer, WatchRequest, ended_by_sigterm, looks
from specserve.metrics.counters import Acceptance, Counters

ERROR = 0.01
"""Share of comparisons of equal servers that end with a false verdict, at most, however often one looks."""
BLOCK_REQUESTS = 5
"""Requests that each server must finish before a block of time ends."""
_BLOCK_LATENCIES = 3.0
"""A block lasts at least this many times as long as a request on average: long ones, which draft most, last longer."""
_FAILED = ("error", "abort")
"""vLLM's reasons of requests that did not end well; a client that gives up counts as `abort`."""
_UNEQUAL_LOAD = 1.5


@dataclass(frozen=True, slots=True)
class Margins:
    """How much worse a canary may be and still replace the other server."""

    acceptance: float = 0.05
    """Of the acceptance rate, 0 to 1; 5 points of it change the time per token by about 5 %."""
    tpot: float = 0.05
    """Of the time per output token, as a share of the other server's."""
    errors: float = 0.01
    """Of the share of requests that fail, 0 to 1."""


def read_margins(texts: Sequence[str]) -> Margins:
    """Returns the margins of `acceptance=0.05` and the like; the others keep their defaults. Raises UsageError."""
    names = [field.name for field in fields(Margins)]
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            raise UsageError(f"`--margin` has no {name!r}", hint=f"use one of {', '.join(names)}")
        found[name] = numbers(value, "--margin", least=0.0, most=1.0)[0]
    return Margins(**found)


class FigureVerdict(StrEnum):
    """What the interval of one figure says of the canary."""

    BETTER = "better"
    NO_WORSE = "no worse"
    """Worse by less than the margin, if at all."""
    WORSE = "worse"
    UNDECIDED = "not decided"
    NOT_COMPARED = "not compared"


class CanaryState(StrEnum):
    """What all figures together say."""

    PROMOTE = "PROMOTE"
    ROLL_BACK = "ROLL BACK"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of both servers; TPOT in seconds, its difference and margin as shares of the other server's."""

    name: str
    verdict: FigureVerdict
    margin: float
    canary: float | None = None
    other: float | None = None
    difference: Interval | None = None
    """The canary's minus the other's."""
    why: str = ""
    """Why it is not compared."""


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """What one server did since the comparison began."""

    requests: int = 0
    failed_requests: int = 0
    running_requests: float = 0.0
    """The mean."""
    restarts: int = 0
    has_answered: bool = False
    trouble: SpecserveError | None = None
    """Why there is no newest reading."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What the comparison came to so far."""

    at_s: float
    """Seconds since the epoch."""
    seconds: float
    blocks: int
    state: CanaryState
    figures: tuple[ComparedFigure, ...]
    canary: ServerTotals
    other: ServerTotals
    is_final: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to trust the verdict."""
        notes = []
        mine, theirs = self.canary.running_requests, self.other.running_requests
        if 0 < _UNEQUAL_LOAD * min(mine, theirs) < max(mine, theirs):
            notes.append(
                f"the load differs: on average {mine:.1f} requests run on the canary and {theirs:.1f} on the other "
                "server; TPOT depends on it"
            )
        for name, totals in (("canary", self.canary), ("other server", self.other)):
            if totals.restarts:
                times = "once" if totals.restarts == 1 else f"{totals.restarts} times"
                notes.append(f"the {name} restarted {times}; requests that were cut off are not counted")
            if totals.trouble is not None:
                notes.append(f"the last reading of the {name} failed: {totals.trouble.message}")
        return tuple(notes)


class _ComparedServer:
    """One server's readings, what it counted since its block began, and altogether."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self.readings = Readings(read)
        self.block: Stretch | None = None
        self.whole = Stretch(0.0, 0.0)

    def look(self) -> None:
        """Read once more."""
        stretch = self.readings.step()
        if stretch is not None:
            ended_s = self.whole.ended_s + stretch.seconds  # without the time of restarts
            self.whole = replace(joined([self.whole, stretch]), ended_s=ended_s)
            self.block = joined([self.block, stretch]) if self.block is not None else stretch

    @property
    def is_block_full(self) -> bool:
        """Whether the block has enough requests and time, and the server answers."""
        block = self.block
        if self.readings.trouble is not None or block is None:
            return False
        if block.counters.finished_requests < BLOCK_REQUESTS:
            return False
        return block.seconds >= _BLOCK_LATENCIES * self.whole.request_s

    @property
    def totals(self) -> ServerTotals:
        """Everything so far."""
        counters, seconds = self.whole.counters, self.whole.seconds
        return ServerTotals(
            requests=counters.finished_requests,
            failed_requests=sum(counters.finished.get(reason, 0) for reason in _FAILED),
            running_requests=self.whole.running_request_s / seconds if seconds else 0.0,
            restarts=self.readings.restarts,
            has_answered=self.readings.last is not None,
            trouble=self.readings.trouble,
        )

    @property
    def draft_positions(self) -> int | None:
        """K as the counters have positions; 0 if it has no speculation counters, None if it never answered."""
        if self.readings.last is None:
            return None
        engines = self.readings.last.metrics.acceptance.values()
        return max((len(counted.accepted_per_position) for counted in engines), default=0)


class CanaryComparison:
    """A canary and another server, look by look. Its memory does not grow."""

    def __init__(
        self, canary: Callable[[], Reading], other: Callable[[], Reading], *, margins: Margins | None = None
    ) -> None:
        """Both callables raise TrafficError if no one answers, FactError if the answer is invalid."""
        self._servers = _ComparedServer(other), _ComparedServer(canary)
        self._margins = margins or Margins()
        self._error = ERROR / len(fields(Margins))
        self._acceptance, self._tpot = PairedDifference(), PairedDifference()
        self._blocks = 0

    def look(self) -> CanaryReport:
        """Read both servers once more and judge everything that was counted so far."""
        for server in self._servers:
            server.look()
        restarted = any(server.readings.restarted for server in self._servers)
        is_full = not restarted and all(server.is_block_full for server in self._servers)
        old, new = (server.block.counters if server.block else Counters() for server in self._servers)
        if is_full:
            self._blocks += 1
            self._acceptance.add(_accepted(old.acceptance), _accepted(new.acceptance))
            self._tpot.add((old.tpot_s.sum, old.tpot_s.count), (new.tpot_s.sum, new.tpot_s.count))
        if restarted or is_full:
            for server in self._servers:
                server.block = None
        return self.whole(is_final=False)

    def whole(self, *, is_final: bool = True) -> CanaryReport:
        """Judge everything that was counted."""
        figures = (self._compare_acceptance(), self._compare_tpot(), self._compare_errors())
        other, canary = (server.totals for server in self._servers)
        verdicts = {figure.verdict for figure in figures}
        is_blind = canary.trouble is not None or other.trouble is not None
        # one worse figure is enough to roll back; to promote, every figure that can be compared must be decided
        state = CanaryState.PROMOTE
        if FigureVerdict.WORSE in verdicts:
            state = CanaryState.ROLL_BACK
        elif is_blind or FigureVerdict.UNDECIDED in verdicts:
            state = CanaryState.UNDECIDED
        seconds = max(server.whole.seconds for server in self._servers)
        return CanaryReport(time.time(), seconds, self._blocks, state, figures, canary, other, is_final)

    def _compare_acceptance(self) -> ComparedFigure:
        margin = self._margins.acceptance
        theirs, mine = (server.draft_positions for server in self._servers)
        if None not in (theirs, mine) and (mine != theirs or not mine):
            why = f"the canary drafts {mine} tokens per step, the other server {theirs}"
            if not mine or not theirs:
                why = f"the {'other server' if mine else 'canary'} has no speculation counters"
            return ComparedFigure("acceptance", FigureVerdict.NOT_COMPARED, margin, why=why)
        least = sum(_binomial_variance(server.whole.acceptance) for server in self._servers)
        found = self._acceptance.interval(error=self._error, least_variance=least)
        return _judged("acceptance", found, self._acceptance.ratios, margin, sign=1)

    def _compare_tpot(self) -> ComparedFigure:
        found, (other, _) = self._tpot.interval(error=self._error), self._tpot.ratios
        if self._blocks and other <= 0:
            why = "no request had a second output token, or vLLM does not count the time per output token"
            return ComparedFigure("tpot", FigureVerdict.NOT_COMPARED, self._margins.tpot, why=why)
        if found is not None:
            found = Interval(found.value / other, found.low / other, found.high / other)
        return _judged("tpot", found, self._tpot.ratios, self._margins.tpot, sign=-1)

    def _compare_errors(self) -> ComparedFigure:
        theirs, mine = ((one.totals.failed_requests, one.totals.requests) for one in self._servers)
        shares = (theirs[0] / max(theirs[1], 1), mine[0] / max(mine[1], 1))
        found = share_difference(theirs, mine, error=self._error)
        return _judged("errors", found, shares, self._margins.errors, sign=-1)


def _accepted(counted: Acceptance) -> tuple[int, int]:
    return counted.accepted_tokens, counted.draft_tokens


def _binomial_variance(counted: Acceptance) -> float:
    """Of an acceptance rate if draft tokens were independent; two of four are added (Agresti and Coull)."""
    share = (counted.accepted_tokens + 2) / (counted.draft_tokens + 4)
    return max(share * (1 - share), 0.0) / max(counted.draft_tokens, 1)


def _judged(
    name: str, found: Interval | None, ratios: tuple[float, float], margin: float, *, sign: int
) -> ComparedFigure:
    """What the interval says; `sign` is -1 if less is better."""
    if found is None:
        return ComparedFigure(name, FigureVerdict.UNDECIDED, margin)
    low, high = sorted((sign * found.low, sign * found.high))
    verdict = FigureVerdict.WORSE if high < 0 else FigureVerdict.UNDECIDED
    if low > -margin:
        verdict = FigureVerdict.BETTER if low > 0 else FigureVerdict.NO_WORSE
    return ComparedFigure(name, verdict, margin, canary=ratios[1], other=ratios[0], difference=found)


def compared_servers(canary: WatchRequest, other: str) -> tuple[WatchedServer, WatchedServer]:
    """The canary and the other server. Raises UsageError, also if they are the same."""
    servers = WatchedServer(canary), WatchedServer(replace(canary, server=other))
    if servers[0].endpoint.root == servers[1].endpoint.root:
        raise UsageError(
            f"the canary and the other server are the same: {servers[0].endpoint.root}",
            hint="name the canary first: `specserve watch CANARY --against SERVER`",
        )
    return servers


def compare_servers(servers: tuple[WatchedServer, WatchedServer], margins: Margins) -> Iterator[CanaryReport]:
    """Compare until it is decided or the time is over: a report for each look, and the final one.

    Raises the TrafficError or FactError of a server that never answered, Interrupted on SIGTERM, KeyboardInterrupt.
    """
    canary, other = (server.source.read for server in servers)
    comparison, request = CanaryComparison(canary, other, margins=margins), servers[0].request
    with ended_by_sigterm():
        for report in looks(comparison, interval_s=request.interval_s, for_s=request.for_s):
            if report.is_final:
                break
            yield report
            if report.state is not CanaryState.UNDECIDED:
                break
        report = comparison.whole()
    for totals in (report.canary, report.other):
        if totals.trouble is not None and not totals.has_answered:
            raise totals.trouble
    yield report
