"""A canary against another server: verdicts, restarts, servers that do not speculate or do not answer."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from specserve.errors import TrafficError, UsageError
from specserve.measure.watch.compare import (
    BLOCK_REQUESTS,
    CanaryComparison,
    CanaryReport,
    CanaryState,
    FigureVerdict,
    Margins,
    read_margins,
)
from specserve.measure.watch.figures import Reading
from specserve.metrics.prometheus import read

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from metrics_server import Traffic

LOOK_S = 15.0


@dataclass
class Server:
    """A stand-in whose requests differ in acceptance and pace."""

    rate: float = 0.6
    pace_s: float = 0.03
    failing: float = 0.0
    per_look: int = 20
    running: int = 2
    engine: Traffic = field(default_factory=Traffic)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    at_s: float = 0.0
    is_gone: bool = False

    def work(self) -> None:
        """What happens until the next look."""
        self.engine.running = self.running
        for _ in range(self.per_look):
            rate = min(max(self.rng.gauss(self.rate, 0.15), 0.05), 0.95)
            self.engine.step(40, (rate,) * len(self.engine.accepted))
            if self.rng.random() < self.failing:
                self.engine.failed += 1
            else:
                self.engine.finished += 1
            self.engine.tpot_s.append(self.pace_s * self.rng.lognormvariate(0, 0.1))

    def read(self) -> Reading:
        """A reading after a look's time."""
        self.at_s += LOOK_S
        if self.is_gone:
            raise TrafficError("nothing listens there")
        return Reading(self.at_s, read(self.engine.text))

    def restart(self) -> None:
        """Count from 0 again, as a new process does."""
        self.engine = Traffic(created_s=1.8e9)


def compared(
    canary: Server,
    other: Server,
    *,
    looks: int = 40,
    margins: Margins | None = None,
    at: dict[int, Callable[[], None]] | None = None,
) -> list[CanaryReport]:
    """A report for each look, until it is decided."""
    canary.rng, other.rng = random.Random(11), random.Random(22)
    comparison = CanaryComparison(canary.read, other.read, margins=margins)
    reports = []
    for look in range(looks):
        (at or {}).get(look, lambda: None)()
        reports.append(comparison.look())
        if reports[-1].state is not CanaryState.UNDECIDED:
            break
        canary.work()
        other.work()
    return reports


def verdicts(report: CanaryReport) -> dict[str, str]:
    return {figure.name: figure.verdict.value for figure in report.figures}


WIDE = Margins(acceptance=0.1, tpot=0.1, errors=0.05)


def test_an_equal_canary_is_promoted_after_enough_requests() -> None:
    *before, last = compared(Server(), Server(), margins=WIDE)
    assert last.state is CanaryState.PROMOTE
    assert set(verdicts(last).values()) == {"no worse"}
    assert {report.state for report in before} == {CanaryState.UNDECIDED}
    assert last.blocks == len(before) == last.canary.requests / 20


@pytest.mark.parametrize(
    ("canary", "figure"),
    [(Server(rate=0.3), "acceptance"), (Server(pace_s=0.04), "tpot"), (Server(failing=0.2), "errors")],
    ids=["acceptance", "tpot", "errors"],
)
def test_a_worse_canary_is_rolled_back_by_the_figure_that_is_worse(canary: Server, figure: str) -> None:
    last = compared(canary, Server())[-1]
    assert last.state is CanaryState.ROLL_BACK
    assert [name for name, verdict in verdicts(last).items() if verdict == "worse"] == [figure]
    assert last.canary.requests <= 300


def test_a_better_canary_is_promoted_as_better() -> None:
    last = compared(Server(rate=0.8, pace_s=0.02), Server(failing=0.1), margins=Margins(0, 0, 0))[-1]
    assert last.state is CanaryState.PROMOTE
    assert set(verdicts(last).values()) == {"better"}


def test_the_difference_is_the_canarys_minus_the_others() -> None:
    acceptance, tpot, errors = compared(Server(rate=0.4, pace_s=0.06), Server(failing=0.5), looks=30)[
        -1
    ].figures
    for figure, difference in ((acceptance, -0.2), (tpot, 1.0), (errors, -0.5)):
        found = figure.difference
        assert found is not None
        assert found.low < found.value < found.high
        assert found.value == pytest.approx(difference, abs=0.25 * abs(difference))
    assert tpot.canary == pytest.approx(0.06, rel=0.05)


def test_a_restart_ends_the_block_and_is_reported() -> None:
    canary = Server()
    last = compared(canary, Server(), looks=12, at={6: canary.restart})[-1]
    assert (last.canary.restarts, last.other.restarts, last.blocks) == (1, 0, 10)
    assert last.canary.requests == 200
    assert last.notes == ("the canary restarted once; requests that were cut off are not counted",)
    acceptance = last.figures[0]
    assert acceptance.canary == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize(
    ("canary", "other", "why"),
    [
        (False, True, "the canary has no speculation counters"),
        (True, False, "the other server has no speculation counters"),
        (False, False, "the canary has no speculation counters"),
    ],
)
def test_without_speculation_the_rest_is_compared(canary: bool, other: bool, why: str) -> None:
    servers = [Server(engine=Traffic(speculates=speculates)) for speculates in (canary, other)]
    last = compared(*servers, margins=WIDE)[-1]
    assert last.state is CanaryState.PROMOTE
    assert verdicts(last) == {"acceptance": "not compared", "tpot": "no worse", "errors": "no worse"}
    assert last.figures[0].why == why


def test_other_numbers_of_draft_tokens_have_no_common_acceptance() -> None:
    last = compared(Server(engine=Traffic(accepted=[0, 0])), Server(), looks=3)[-1]
    assert last.figures[0].why == "the canary drafts 2 tokens per step, the other server 4"


def test_without_the_histogram_tpot_is_not_compared() -> None:
    canary, other = Server(pace_s=0.0), Server(pace_s=0.0)
    assert verdicts(compared(canary, other, margins=WIDE)[-1])["tpot"] == "not compared"


def test_a_canary_that_does_not_answer_is_not_promoted() -> None:
    canary = Server()
    reports = compared(
        canary, Server(), looks=40, margins=WIDE, at={3: lambda: setattr(canary, "is_gone", True)}
    )
    last = reports[-1]
    assert last.state is CanaryState.UNDECIDED
    assert last.blocks == 2
    assert last.notes == ("the last reading of the canary failed: nothing listens there",)


def test_what_happened_while_a_server_did_not_answer_counts_afterwards() -> None:
    canary = Server()
    away = {3: lambda: setattr(canary, "is_gone", True), 6: lambda: setattr(canary, "is_gone", False)}
    last = compared(canary, Server(), looks=10, at=away)[-1]
    assert last.canary.requests == last.other.requests == 180
    assert last.blocks == 6


def test_a_block_waits_for_requests_of_both_servers() -> None:
    last = compared(Server(per_look=1, running=1), Server(), looks=3 * BLOCK_REQUESTS + 1)[-1]
    assert last.blocks == 3


def test_a_block_is_longer_than_a_request() -> None:
    # 20 requests in 15 s and 60 of them running: each takes 45 s
    last = compared(Server(running=60), Server(running=60), looks=22)[-1]
    assert last.blocks == 2


def test_an_unequal_load_is_noted() -> None:
    assert compared(Server(running=1), Server(running=8), looks=3)[-1].notes[0].startswith("the load differs")
    assert compared(Server(running=8), Server(running=7), looks=3)[-1].notes == ()


def test_false_verdicts_stay_below_their_share() -> None:
    false = 0
    for seed in range(40):
        canary, other = Server(per_look=8), Server(per_look=8)
        canary.rng, other.rng = random.Random(seed), random.Random(1000 + seed)
        comparison = CanaryComparison(canary.read, other.read)
        seen: set[FigureVerdict] = set()
        for _ in range(30):
            seen |= {figure.verdict for figure in comparison.look().figures}
            canary.work()
            other.work()
        false += bool(seen & {FigureVerdict.WORSE, FigureVerdict.BETTER})
    assert false <= 1


def test_margins_are_read() -> None:
    assert read_margins([]) == Margins()
    assert read_margins(["tpot=0.2", "errors=0.5"]) == replace(Margins(), tpot=0.2, errors=0.5)
    for text in ("speed=1", "tpot", "tpot=x", "errors=2"):
        with pytest.raises(UsageError):
            read_margins([text])
