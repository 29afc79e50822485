"""A watched server: its figures are those computed by hand, its verdict comes in time and says what to do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from metrics_server import Script, Traffic

from specserve.errors import TrafficError
from specserve.measure import watch as module
from specserve.measure.verdict import Estimate, Kept, Verdict
from specserve.measure.watch import (
    COLLAPSED,
    MAX_READINGS,
    MISSED,
    SINKING,
    STEADY,
    UNDECIDED,
    UNSEEN,
    Advice,
    Reading,
    WatchedServer,
    WatchReport,
    Window,
    acceptance_intervals,
    advise,
    dead_drafts,
    figures,
    gained,
    judge_promises,
    judge_window,
    p99_ms,
    reports,
    shown,
    trend,
)
from specserve.metrics import Acceptance, Counters, EngineMetrics, EngineName, Histogram, Metrics, read
from specserve.profile.schema import Profile
from tests.measure.trends import SERIES, alarms

DATA = Path(__file__).parents[1] / "data" / "metrics"
DEMO = EngineName("demo", "0")
GOOD = (0.8, 0.6, 0.5, 0.4)
DEAD = (0.02, 0.01, 0.0, 0.0)


def gain(
    drafts: int = 100,
    shares: tuple[float, ...] = GOOD,
    *,
    finished: int = 5,
    plain_tokens: int = 0,
    draft_tokens: int | None = None,
    preemptions: int = 0,
    ttft_s: Histogram | None = None,
) -> Counters:
    """What one engine counts while so many drafts are accepted by these shares per position."""
    accepted = tuple(round(drafts * share) for share in shares)
    drafted = len(shares) * drafts if draft_tokens is None else draft_tokens
    return Counters(
        acceptance=Acceptance(drafts, drafted, sum(accepted), accepted),
        finished_requests=finished,
        generation_tokens=drafts + sum(accepted) + plain_tokens,
        preemptions=preemptions,
        ttft_s=ttft_s or Histogram(),
    )


def readings(
    *gains: Counters | dict[EngineName, Counters], every_s: float = 5.0, speculates: bool = True
) -> list[Reading]:
    """The readings between which the engines count that."""
    each = [one if isinstance(one, dict) else {DEMO: one} for one in gains]
    engine = EngineMetrics(Counters(), 2, 0, speculates)
    state = dict.fromkeys(each[0], engine)
    found = [Reading(0.0, Metrics(dict(state)))]
    for number, one in enumerate(each, start=1):
        state = {
            name: replace(engine, counters=engine.counters + one[name]) for name, engine in state.items()
        }
        found.append(Reading(every_s * number, Metrics(state)))
    return found


def test_the_figures_of_a_real_server_equal_those_computed_by_hand() -> None:
    texts = [DATA.joinpath(f"demo-{when}.txt").read_text(encoding="utf-8") for when in ("before", "after")]
    seen = figures([Reading(30.05 * at, read(text)) for at, text in enumerate(texts)])
    counted = seen.counted
    assert counted.acceptance == Acceptance(249, 996, 639, (196, 162, 149, 132))
    assert counted.acceptance.mean_acceptance_length == pytest.approx(1 + 639 / 249)
    assert (counted.generation_tokens, counted.finished_requests) == (1056 - 177, 14)
    assert seen.seconds == pytest.approx(30.05)
    assert seen.running_requests == 2.0
    assert counted.ttft_s.count == 17 - 3
    assert counted.ttft_s.mean == pytest.approx((30.866264 - 6.711240) / 14)
    assert seen.mean_acceptance_length is None  # two readings are one part


def test_output_that_came_without_a_draft_is_told() -> None:
    def undrafted(plain_tokens: int) -> float | None:
        return figures(readings(*[gain(plain_tokens=plain_tokens)] * 4)).undrafted_share

    assert undrafted(0) == pytest.approx(0.0)
    assert undrafted(110) == pytest.approx(0.25)  # 330 tokens of 100 steps with drafts
    assert undrafted(-50) == 0.0  # what a request's end cuts off is counted as accepted
    assert figures(readings(gain(10))).undrafted_share is None


@pytest.mark.parametrize(
    ("parts", "is_there"),
    [
        ([gain()] * 2, False),
        ([gain()] * 3, True),
        ([gain(finished=0)] * 12, False),  # requests that go on and on: neighbouring parts are the same ones
        ([gain(finished=1)] * 12, True),
        ([gain(16)] * 12, False),  # 192 drafts
    ],
)
def test_an_interval_needs_three_parts_each_longer_than_a_request(
    parts: list[Counters], is_there: bool
) -> None:
    assert (figures(readings(*parts)).mean_acceptance_length is not None) is is_there


def test_an_interval_holds_the_truth_in_about_95_of_100_windows() -> None:
    # requests with an acceptance of their own, as in real traffic: five in each of twelve parts
    chance, hits = random.Random(7), 0
    for _ in range(1000):
        parts = []
        for _part in range(12):
            shares = [min(max(chance.gauss(0.6, 0.15), 0.0), 1.0) for _ in range(5)]
            parts.append(gain(1000, (sum(shares) / 5,) * 4).acceptance)
        length, _ = acceptance_intervals(parts)
        hits += length is not None and length.low <= 1 + 4 * 0.6 <= length.high
    assert 930 <= hits <= 970


@given(
    st.lists(st.tuples(st.integers(0, 60), st.lists(st.floats(0, 1), min_size=4, max_size=4)), max_size=15)
)
@example([(40, [0.0] * 4), (50, [0.0] * 4), (50, [0.0] * 4), (60, [0.0, 0.0, 0.0, 1.0])])
def test_an_interval_holds_its_figure_and_stays_possible(parts: list[tuple[int, list[float]]]) -> None:
    counted = [gain(n, tuple(sorted(shares, reverse=True))) for n, shares in parts]
    length, rate = acceptance_intervals([one.acceptance for one in counted])
    if length is not None and rate is not None:
        assert 1 <= length.low <= length.value <= length.high <= 5
        assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_a_p99_is_bounded_by_ranks_and_buckets() -> None:
    def bounds(*counts: int) -> tuple[float, float]:
        found = p99_ms(Histogram(dict(zip((0.1, 0.5, 1.0, math.inf), counts, strict=True))))
        return (found.low, found.high) if found is not None else (-1.0, -1.0)

    assert bounds(29, 0, 0, 0) == (-1.0, -1.0)
    assert bounds(367, 0, 0, 0)[1] == math.inf
    assert bounds(368, 0, 0, 0)[1] == 100.0
    low, high = bounds(900, 0, 100, 0)
    assert 500.0 < low < 500.1 and high == 1000.0


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 500)), min_size=1, max_size=300),
    span_s=st.floats(1, 120),
)
def test_a_window_holds_the_newest_and_stays_small(steps: list[tuple[float, int]], span_s: float) -> None:
    window, drafts, at_s = Window(span_s), 0, 0.0
    for seconds, more in steps:
        drafts, at_s = drafts + more, at_s + seconds
        newest = replace(readings(gain(drafts))[1], at_s=at_s)
        window.add(newest)
        assert len(window.readings) <= MAX_READINGS + 2
    assert window.readings[-1] == newest
    assert all(one.at_s < after.at_s for one, after in pairwise(window.readings))
    longest_s = max(seconds for seconds, _ in steps)
    assert window.readings[-1].at_s - window.readings[0].at_s <= span_s * 1.02 + longest_s


def test_a_restart_is_told_by_counters_that_dropped_or_by_another_birth() -> None:
    def reading(at_s: float, drafts: int, created_s: float) -> Reading:
        one = readings(gain(drafts))[1].metrics.engines[DEMO]
        return Reading(at_s, Metrics({DEMO: replace(one, created_s=created_s)}))

    before = reading(0, 100, 1.0)
    assert gained(before, reading(5, 99, 1.0)) is None
    assert gained(before, reading(5, 500, 2.0)) is None
    found = gained(before, reading(5, 500, 1.0))
    assert found is not None and found.acceptance.drafts == 400


def judged(parts: list[Reading], profile: Profile | None = None) -> Verdict:
    seen = figures(parts)
    promises = judge_promises(profile, seen) if profile is not None else ()
    return judge_window(parts, seen, promises=promises)


EIGHT = [EngineName("demo", str(number)) for number in range(8)]
ONE_DEAD = {name: gain(shares=DEAD if name.engine == "5" else GOOD) for name in EIGHT}


@pytest.mark.parametrize(
    ("parts", "state", "sentence"),
    [
        (readings(*[gain()] * 12), "STEADY", "the mean acceptance length is 3.30 (95 %: 3.30 to 3.30)"),
        (readings(*[gain(20, finished=1)] * 12), "STEADY", "the mean acceptance length is 3.30"),
        (readings(*[gain(0)] * 12, speculates=False), "OFF", "the server does not speculate"),
        (readings(*[gain(0, finished=0)] * 12), "UNDECIDED", "no traffic in 60 s"),
        (
            readings(*[gain(finished=0)] * 12),
            "UNDECIDED",
            "1,200 drafts in 60 s give no interval yet: use a longer `--window`",
        ),
        (
            readings(*[gain(20, (share, 0.0, 0.0, 0.0), finished=1) for share in (0.0, 0.2)] * 6),
            "UNDECIDED",
            "the mean acceptance length is 1.10 (95 %: 1.",
        ),
        # though the window still looks well
        (
            readings(*[gain()] * 9, *[gain(shares=DEAD)] * 3),
            "COLLAPSED",
            "the draft is dead: the newest drafts give 1.03 (engine 0) tokens per step",
        ),
        (
            readings(*[ONE_DEAD] * 12),
            "COLLAPSED",
            "the draft is dead: the newest drafts give 1.03 (engine 5) tokens per step",
        ),
        (readings(*[gain(4000, shares=DEAD)] * 12, every_s=0.5), "COLLAPSED", "the draft is dead"),
    ],
)
def test_the_state_is_the_first_that_applies(parts: list[Reading], state: str, sentence: str) -> None:
    verdict = judged(parts)
    assert verdict.word == state
    assert verdict.sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("drafts", "dead", "well"),
    [
        (300, 1, 9),  # a short odd moment of a quiet server
        (16, 12, 0),  # few drafts
        (100, 3, 4),  # dead, and then well again
    ],
)
def test_a_collapse_needs_200_drafts_in_15_s(drafts: int, dead: int, well: int) -> None:
    parts = [gain()] * well + [gain(drafts, DEAD)] * dead
    assert dead_drafts(readings(*(reversed(parts) if well == 4 else parts))) is None


def test_promises_of_time_are_held_against_what_the_buckets_can_tell(
    profile: Callable[[str], Profile],
) -> None:
    def kept(*counts: int) -> Kept:
        observed = Histogram(dict(zip((0.1, 0.5, float("inf")), counts, strict=True)))
        seen = figures(readings(*[gain()] * 11, gain(ttft_s=observed)))
        (one,) = judge_promises(profile("expect: [{max_ttft_p99_ms: 100}]"), seen)
        return one.kept

    assert [kept(1000, 0, 0), kept(900, 100, 0)] == ["kept", "missed"]
    assert [kept(100, 0, 0), kept(0, 0, 0)] == ["undecided", "undecided"]


LATE = (0.6, 0.3, 0.06, 0.02)


@pytest.mark.parametrize(
    ("each", "word", "code", "sentence"),
    [
        (gain(), COLLAPSED, "restart", "up --alternative baseline"),
        (gain(plain_tokens=150), STEADY, "nothing_drafted", "31% of the output tokens came without a draft"),
        (gain(preemptions=1), STEADY, "overload", "12 preemptions lost work"),
        (
            gain(shares=LATE),
            STEADY,
            "fewer_tokens",
            "`num_speculative_tokens: 2`: the positions after that add 4% of the tokens, less than they cost",
        ),
        (gain(shares=LATE), UNDECIDED, None, ""),  # too few drafts
        (gain(shares=LATE, draft_tokens=250), STEADY, None, ""),  # K varies
    ],
)
def test_the_advice_says_what_to_do(each: Counters, word: str, code: str | None, sentence: str) -> None:
    found: Advice | None = advise(figures(readings(*[each] * 12)), word)
    assert (found.code if found else None) == code
    assert found is None or sentence in found.sentence


def watched_for(*quarters: Counters, minutes: int = 120) -> Window:
    """Readings each minute, a quarter of them with each of these counts."""
    window = Window(60)
    for reading in readings(*(each for each in quarters for _ in range(minutes // 4)), every_s=60):
        window.add(reading)
    return window


def sinking(*shares: tuple[float, ...], **last: Any) -> Window:
    """Two hours in which acceptance goes from share to share."""
    *before, newest = shares
    return watched_for(*(gain(shares=each) for each in before), gain(shares=newest, **last))


STEPS = [
    (0.80, 0.60, 0.50, 0.40),
    (0.76, 0.56, 0.46, 0.36),
    (0.72, 0.52, 0.42, 0.32),
    (0.68, 0.48, 0.38, 0.28),
]
START = [
    (0.80, 0.60, 0.50, 0.40),
    (0.76, 0.57, 0.475, 0.38),
    (0.72, 0.54, 0.45, 0.36),
    (0.68, 0.51, 0.425, 0.34),
]
CHAIN = [
    (0.80, 0.60, 0.50, 0.40),
    (0.80, 0.56, 0.44, 0.32),
    (0.80, 0.52, 0.38, 0.24),
    (0.80, 0.48, 0.32, 0.16),
]


@pytest.mark.parametrize(
    ("window", "code", "words"),
    [
        (sinking(*STEPS), "restart_one", "(vllm-project/vllm#41838), else the text changed"),
        (sinking(*STEPS), "restart_one", "acceptance sinks at all positions"),
        (sinking(*START), "restart_one", "at position 1 alone"),
        (sinking(*CHAIN), "restart_one", "behind position 1, where a smaller `num_speculative_tokens` loses"),
        (sinking(*STEPS, finished=2), "traffic_changed", "requests of 141 output tokens instead of 66"),
    ],
)
def test_acceptance_that_sinks_for_hours_is_told_with_where_and_what_to_do(
    window: Window, code: str, words: str
) -> None:
    since = trend(window.history)
    assert since is not None and since.sinks and since.per_hour is not None
    verdict = judge_window(window.readings, figures(window.readings), since=since)
    assert verdict.word == SINKING and verdict.level == "open"
    assert verdict.sentence.startswith("the mean acceptance length sank from 3.30 to 2.")
    found = advise(figures(window.readings), MISSED, since=since)
    assert found is not None and (found.code, words in found.sentence) == (code, True)


@pytest.mark.parametrize(
    "window",
    [
        watched_for(*[gain()] * 4),
        sinking(STEPS[0], STEPS[3], STEPS[0], STEPS[3]),  # traffic that comes and goes
        sinking(*[(0.8, 0.6, 0.5, 0.4), (0.8, 0.6, 0.4, 0.3), (0.8, 0.5, 0.3, 0.1), (0.8, 0.5)], draft_tokens=200),
        sinking(*reversed(STEPS)),
    ],
    ids=["steady", "comes and goes", "a schedule lowers K", "rises"],
)  # fmt: skip
def test_a_trend_is_no_alarm_unless_it_goes_down_steadily_at_the_same_k(window: Window) -> None:
    since = trend(window.history)
    assert since is not None and not since.sinks
    assert judge_window(window.readings, figures(window.readings), since=since).word != SINKING


def test_there_is_no_trend_of_half_an_hour_or_of_a_few_drafts() -> None:
    assert trend(watched_for(*[gain()] * 4, minutes=28).history) is None
    assert trend(watched_for(*[gain(4)] * 4).history) is None
    assert trend(watched_for(*[gain(finished=0)] * 4).history) is None  # requests that go on and on


def test_a_history_reaches_back_to_the_beginning_and_stays_small() -> None:
    window = watched_for(*[gain()] * 4, minutes=3000)
    assert len(window.history) <= MAX_READINGS and window.history[0].at_s == 0
    assert window.history[-1] is window.readings[-1]
    window.add(readings(gain(1))[0])  # a restart
    assert len(window.history) == 1


def test_hours_of_noise_raise_no_alarm_and_a_fall_of_a_fifth_does() -> None:
    """Of 1,000 series each: docs/measurements.md."""
    steady, _, _, _, fall, *_ = SERIES
    assert not alarms(steady, 20) and len(alarms(fall, 5)) == 5


class Clock:
    """It passes only while `reports` sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return Clock.now_s

    time = monotonic

    def sleep(self, seconds: float) -> None:
        Clock.now_s += seconds


class Watched(WatchedServer):
    """A server whose metrics a script says, without sockets."""

    def __init__(self, script: Script) -> None:
        super().__init__("http://127.0.0.1:1")
        self.script = script
        self.error: Exception | None = None

    def read(self) -> Reading:
        if self.error is not None:
            raise self.error
        return Reading(Clock.now_s, read(self.script.text))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    Clock.now_s = 0.0
    monkeypatch.setattr(module, "time", Clock())
    return Watched(Script([Traffic()]))


@pytest.fixture
def after(watched: Watched) -> Callable[..., WatchReport]:
    """The report after so many more intervals with this acceptance."""
    every = reports(watched, window_s=60, interval_s=5)
    next(every)

    def look(*steps: tuple[float, ...], drafts: int = 100) -> WatchReport:
        report = None
        for shares in steps:
            watched.script.engines[0].step(drafts, shares, finished=5)
            report = next(every)
        assert report is not None
        return report

    return look


After = Callable[..., WatchReport]


def drafts_of(report: WatchReport) -> Any:
    return report.window and report.window.counted.acceptance.drafts


def test_boot_is_never_in_the_figures(watched: Watched) -> None:
    watched.script.engines[0].step(10**6, DEAD)
    every = reports(watched, window_s=60, interval_s=5)
    first = next(every)
    assert (first.window, first.verdict.word) == (None, UNDECIDED)
    watched.script.engines[0].step(100, GOOD)
    assert drafts_of(next(every)) == 100


def test_a_restart_begins_the_window_anew(after: After, watched: Watched) -> None:
    after(*[GOOD] * 6)
    watched.script.engines = [Traffic(drafts=10**7, created_s=1.8e9)]
    assert after(GOOD).window is None
    assert drafts_of(after(GOOD, GOOD, GOOD)) == 300


def test_an_absence_without_a_restart_loses_nothing(after: After, watched: Watched) -> None:
    after(GOOD, GOOD)
    watched.error = TrafficError("nobody there")
    gone = after(GOOD)
    assert (gone.verdict.word, gone.verdict.sentence) == (UNSEEN, "nobody there")
    watched.error = None
    report = after(GOOD)
    assert report.window is not None and report.window.seconds == 20.0
    assert drafts_of(report) == 400


def test_looks_come_in_time_and_a_slow_answer_does_not_hurry_the_next(watched: Watched) -> None:
    every: Iterator[WatchReport] = reports(watched, window_s=12, interval_s=5, once=True)
    assert [report.at_s for report in every] == [0, 5, 10, 12]
    every = reports(watched, window_s=30, interval_s=5)
    begin_s = next(every).at_s
    next(every)
    Clock.now_s += 13
    assert [next(every).at_s - begin_s for _ in range(2)] == [20, 25]


@pytest.mark.parametrize(
    ("figure", "unit", "text"),
    [
        (None, " ms", "-"),
        (Estimate(4.354, 4.0, 4.7), "", "4.35 (95 %: 4.00 to 4.70)"),
        (Estimate(900.0, 800.4, math.inf), " ms", "800 ms or more (95 %)"),
        (Estimate(0.5, 0.254, math.inf), "", "0.25 or more (95 %)"),
    ],
)
def test_a_figure_is_shown_with_its_interval(figure: Estimate | None, unit: str, text: str) -> None:
    assert shown(figure, unit) == text
