"""Watching a server over real sockets: restarts, absences, hostile answers, and no memory that grows."""

from __future__ import annotations

import gc
import itertools
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve.errors import FactError, TrafficError
from specserve.measure.watch.figures import Reading
from specserve.measure.watch.verdict import WatchState
from specserve.measure.watch.watch import MetricsSource, Watch, WatchReport, looks
from specserve.metrics.prometheus import read
from specserve.profile.load import load_profile
from specserve.serve.requests import endpoint

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from metrics_server import Script, Traffic, free_port, serving

GOOD = (0.8, 0.6, 0.5, 0.3)
DEAD = (0.02, 0.01, 0.0, 0.0)


class Clocked:
    """Readings of a script, five seconds apart whatever the time is."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.at_s = 0.0
        self.error: Exception | None = None

    def __call__(self) -> Reading:
        self.at_s += 5.0
        if self.error is not None:
            raise self.error
        return Reading(self.at_s, read(self.script.text))


def after(watch: Watch, script: Script, *steps: tuple[float, ...], drafts: int = 100) -> WatchReport:
    """The report after so many more stretches with this acceptance."""
    report = None
    for shares in steps:
        script.engines[0].step(drafts, shares, finished=5)
        report = watch.look()
    assert report is not None
    return report


@pytest.fixture
def script() -> Script:
    return Script([Traffic()])


@pytest.fixture
def source(script: Script) -> Clocked:
    return Clocked(script)


@pytest.fixture
def watch(source: Clocked) -> Watch:
    return Watch(source)


def test_a_first_reading_has_no_figures_and_boot_is_never_in_them(watch: Watch, script: Script) -> None:
    script.engines[0].step(10**6, DEAD)
    first = watch.look()
    assert (first.figures, first.verdict.state) == (None, WatchState.UNDECIDED)
    report = after(watch, script, GOOD, GOOD, GOOD)
    assert report.figures is not None
    assert report.figures.mean_acceptance_length == pytest.approx(3.2)
    assert report.figures.whole.seconds == 15.0


def test_a_collapse_is_told_within_a_minute_of_traffic(watch: Watch, script: Script) -> None:
    watch.look()
    assert after(watch, script, *[GOOD] * 12).verdict.state is WatchState.STEADY
    told = next(
        number
        for number in itertools.count(1)
        if after(watch, script, DEAD).verdict.state is WatchState.COLLAPSED
    )
    assert 5 * told <= 20
    assert watch.whole().has_failed


def test_thin_traffic_takes_longer_to_tell_a_collapse_and_is_not_passed_over(
    watch: Watch, script: Script
) -> None:
    watch.look()
    after(watch, script, *[GOOD] * 12, drafts=10)
    told = next(
        number
        for number in itertools.count(1)
        if after(watch, script, (0.0, 0.0, 0.0, 0.0), drafts=10).verdict.state is WatchState.COLLAPSED
    )
    assert 20 <= told <= 21


def test_a_restart_begins_the_window_anew(watch: Watch, script: Script) -> None:
    watch.look()
    after(watch, script, *[GOOD] * 6)
    script.engines = [Traffic(drafts=10**7, accepted=[0, 0, 0, 0], created_s=1.8e9)]
    report = watch.look()
    assert (report.restarted, report.restarts, report.figures) == (True, 1, None)
    report = after(watch, script, GOOD, GOOD, GOOD)
    assert report.figures is not None
    assert report.figures.counters.acceptance.drafts == 300
    assert report.figures.mean_acceptance_length == pytest.approx(3.2)
    assert not report.restarted
    assert watch.whole().restarts == 1


def test_a_restart_without_a_time_of_birth_is_told_by_counters_that_dropped(
    watch: Watch, script: Script
) -> None:
    script.engines[0].created_s = None
    watch.look()
    after(watch, script, GOOD)
    script.engines = [Traffic(drafts=3, created_s=None)]
    assert watch.look().restarted


def test_an_absence_without_a_restart_loses_nothing(watch: Watch, script: Script, source: Clocked) -> None:
    watch.look()
    after(watch, script, GOOD, GOOD)
    source.error = TrafficError("nobody there")
    gone = watch.look()
    assert (gone.verdict.state, gone.verdict.sentence, gone.figures) == (
        WatchState.UNSEEN,
        "nobody there",
        None,
    )
    source.error = None
    report = after(watch, script, GOOD)
    assert report.figures is not None
    assert report.figures.counters.acceptance.drafts == 300
    assert report.figures.whole.seconds == 20.0
    assert not report.restarted


def test_a_server_that_fell_behind_its_own_past_is_told(watch: Watch, script: Script) -> None:
    watch.look()
    after(watch, script, *[GOOD] * 30)
    assert after(watch, script, *[(0.5, 0.3, 0.2, 0.1)] * 13).verdict.state is WatchState.FALLEN
    whole = watch.whole().verdict
    assert (
        whole.state is WatchState.STEADY
        and "in the last 60 s, the mean acceptance length fell to" in whole.sentence
    )


def test_a_fall_lasts_until_the_length_is_back(watch: Watch, script: Script) -> None:
    watch.look()
    after(watch, script, *[GOOD] * 30)
    fallen = after(watch, script, *[(0.5, 0.3, 0.2, 0.1)] * 200)
    assert fallen.verdict.state is WatchState.FALLEN
    assert after(watch, script, *[GOOD] * 30).verdict.state is WatchState.STEADY


def test_a_profile_that_speculates_and_a_server_that_does_not(
    source: Clocked, script: Script, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("target: {model: org/t}\nspeculation: {method: ngram, num_speculative_tokens: 4}\n")
    watch = Watch(source, profile=load_profile(file))
    script.engines[0].speculates = False
    watch.look()
    report = watch.look()
    assert report.verdict.state is WatchState.MISSED
    assert report.has_failed
    assert f"the profile has a `speculation` section ({file}:2:" in report.verdict.sentence


def test_the_last_report_is_of_all_the_time(watch: Watch, script: Script) -> None:
    watch.look()
    after(watch, script, *[GOOD] * 100)
    whole = watch.whole()
    assert whole.is_final
    assert whole.figures is not None
    assert whole.figures.counters.acceptance.drafts == 10_000
    assert whole.figures.whole.seconds == 500.0


def test_nothing_grows_with_time(watch: Watch, script: Script) -> None:
    def held(looks: int) -> int:
        """Bytes after so many more looks. 60 looks on, the windows hold as many stretches as before."""
        after(watch, script, *[GOOD] * looks)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        watch.look()
        held(190)  # now the windows are full
        assert abs(held(60) - held(60)) < 60_000
    finally:
        tracemalloc.stop()


def over_sockets(url: str, **given: str) -> MetricsSource:
    return MetricsSource(lambda: endpoint(url), timeout_s=60, **given)


def test_a_server_is_waited_for_and_found_again() -> None:
    script, port = Script([Traffic()]), free_port()
    watch = Watch(over_sockets(f"http://127.0.0.1:{port}").read)
    assert "nothing listens" in watch.look().verdict.sentence
    with serving(script, port=port):
        watch.look()
        assert after(watch, script, GOOD).figures is not None
    assert watch.look().verdict.state is WatchState.UNSEEN
    script.engines = [Traffic(created_s=1.8e9)]
    with serving(script, port=port):
        assert watch.look().restarted
        assert after(watch, script, GOOD).figures is not None


def test_a_server_that_comes_back_elsewhere_is_followed() -> None:
    script = Script([Traffic()])
    places: Iterator[str] = iter([])
    with serving(script) as first, serving(script) as second:
        places = iter([f"{first}", f"{second}"])
        source = MetricsSource(lambda: endpoint(next(places)))
        source.read()
        script.fault = "cut"
        with pytest.raises(TrafficError):
            source.read()
        script.fault = None
        source.read()
        assert source.endpoint is not None and source.endpoint.root == second


@pytest.mark.parametrize("fault", ["drip", "trickle", "cut", "gzip", "rubbish", "silent", "elsewhere"])
def test_hostile_answers_are_told_and_outlived(fault: str) -> None:
    script = Script([Traffic()])
    with serving(script) as url:
        # an answer may take its time, except one that never ends
        patient, hasty = (MetricsSource(lambda: endpoint(url), timeout_s=limit_s) for limit_s in (60, 0.1))
        watch = Watch(lambda: (hasty if script.fault in {"drip", "trickle", "silent"} else patient).read())
        watch.look()
        after(watch, script, GOOD, GOOD)
        script.fault = fault
        assert watch.look().verdict.state is WatchState.UNSEEN
        script.fault = None
        report = after(watch, script, GOOD)
        assert report.figures is not None
        assert report.figures.counters.acceptance.drafts == 300


@pytest.mark.parametrize(
    "extra",
    [
        'vllm:generation_tokens_total{engine="0",model_name="demo"} NaN\n',
        'vllm:num_requests_running{engine="0",model_name="demo"} -5\n',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 1e30\n',
    ],
)
def test_impossible_numbers_never_become_figures(extra: str) -> None:
    script = Script([Traffic()])
    with serving(script) as url:
        watch = Watch(over_sockets(url).read)
        watch.look()
        after(watch, script, GOOD, GOOD)
        script.extra = extra
        assert "the metrics are invalid:" in watch.look().verdict.sentence
        script.extra = ""
        report = after(watch, script, GOOD)
        assert report.figures is not None
        assert report.figures.mean_acceptance_length == pytest.approx(3.2)


def test_several_served_models_need_a_name() -> None:
    script = Script([Traffic(model="a"), Traffic(model="b", drafts=7)])
    with serving(script) as url:
        with pytest.raises(FactError, match="contain 2 models: `a`, `b`"):
            over_sockets(url).read()
        with pytest.raises(FactError, match="no model `c`"):
            over_sockets(url, model="c").read()
        assert over_sockets(url, model="b").read().metrics.models == ("b",)


def test_looks_come_in_time_and_the_last_one_when_it_is_over(watch: Watch) -> None:
    now_s, waits = [0.0], []

    def wait(seconds: float) -> None:
        waits.append(round(seconds, 6))
        now_s[0] += seconds

    reports = list(looks(watch, interval_s=5, for_s=12, wait=wait, clock=lambda: now_s[0]))
    assert waits == [5, 5, 2]
    assert [report.is_final for report in reports] == [False, False, False, False, True]


def test_a_slow_answer_does_not_make_the_next_looks_come_faster(watch: Watch) -> None:
    now_s, waits = [0.0], []

    def wait(seconds: float) -> None:
        waits.append(round(seconds, 6))
        now_s[0] += seconds + (13 if len(waits) == 1 else 0)

    list(looks(watch, interval_s=5, for_s=30, wait=wait, clock=lambda: now_s[0]))
    assert waits == [5, 2, 5, 5]
