"""The arithmetic of windows: nothing is lost, nothing counts twice, memory is bounded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.measure.watch.figures import MOST, Reading, Stretch, Window, between, figures, joined
from specserve.metrics.counters import Acceptance, Counters, EngineName
from specserve.metrics.prometheus import EngineMetrics, Metrics

Series = Callable[..., tuple[Stretch, ...]]
NAME = EngineName("demo", "0")
gains = st.lists(
    st.tuples(st.floats(0.1, 30), st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=300
)


def readings(steps: list[tuple[float, int, int]], *, start: int = 0) -> list[Reading]:
    """A server whose engine drafts and accepts so much more from reading to reading."""
    at_s, drafts, accepted = 100.0, start, start
    found = [_reading(at_s, drafts, accepted)]
    for seconds, more, hits in steps:
        at_s, drafts, accepted = at_s + seconds, drafts + more, accepted + min(hits, 4 * more)
        found.append(_reading(at_s, drafts, accepted))
    return found


def _reading(at_s: float, drafts: int, accepted: int, *, created_s: float | None = 1.0) -> Reading:
    counted = Acceptance(drafts, 4 * drafts, accepted, (accepted,))
    engine = EngineMetrics(
        Counters(counted, generation_tokens=drafts + accepted), running_requests=1, created_s=created_s
    )
    return Reading(at_s, Metrics({NAME: engine}))


def stretches_of(found: list[Reading]) -> list[Stretch]:
    steps = [between(before, now) for before, now in pairwise(found)]
    assert None not in steps
    return [step for step in steps if step is not None]


@given(gains, st.integers(0, 10**12))
def test_the_sum_of_the_stretches_is_the_gain_from_the_first_reading_to_the_last(
    steps: list[tuple[float, int, int]], start: int
) -> None:
    found = readings(steps, start=start)
    whole = joined(stretches_of(found))
    first, last = (reading.metrics.engines[NAME].counters.acceptance for reading in (found[0], found[-1]))
    assert whole.counters.acceptance.drafts == last.drafts - first.drafts
    assert whole.counters.acceptance.accepted_tokens == last.accepted_tokens - first.accepted_tokens
    assert whole.seconds == pytest.approx(found[-1].at_s - found[0].at_s)
    assert whole.running_request_s == pytest.approx(whole.seconds)


@given(gains)
def test_a_window_without_an_end_forgets_nothing_and_stays_small(steps: list[tuple[float, int, int]]) -> None:
    window, all_of_them = Window(), stretches_of(readings(steps))
    for stretch in all_of_them:
        window.add(stretch)
        assert len(window.stretches) <= MOST
    assert joined(window.stretches).counters == joined(all_of_them).counters
    assert joined(window.stretches).seconds == pytest.approx(joined(all_of_them).seconds)


@given(gains, st.floats(1, 120))
def test_a_window_is_no_longer_than_asked_for_and_holds_the_newest(
    steps: list[tuple[float, int, int]], span_s: float
) -> None:
    window, longest_s = Window(span_s=span_s), max(seconds for seconds, _, _ in steps)
    all_of_them = stretches_of(readings(steps))
    for stretch in all_of_them:
        window.add(stretch)
    kept = window.stretches
    assert len(kept) <= 2 * MOST
    assert kept[-1].ended_s == all_of_them[-1].ended_s
    whole = joined(kept)
    assert whole.seconds <= span_s + longest_s + 1e-6
    inside = [part for part in all_of_them if part.began_s >= whole.began_s - 1e-9]
    assert whole.counters == joined(inside).counters


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 11))
def test_figures_do_not_depend_on_how_the_time_was_cut(stretches: Series, cut: int) -> None:
    parts = stretches(12)
    again = (joined(parts[:cut]), joined(parts[cut:]))
    mine, theirs = figures(parts), figures(again)
    assert mine.known == theirs.known
    assert mine.per_s(mine.known.drafts) == pytest.approx(theirs.per_s(theirs.known.drafts))
    assert mine.running_requests == pytest.approx(theirs.running_requests)


def test_a_server_that_was_started_anew_gives_no_stretch() -> None:
    assert between(_reading(0, 100, 50), _reading(5, 10, 5)) is None


def test_new_counters_that_overtook_the_old_ones_are_told_by_their_time_of_birth() -> None:
    before = _reading(0, 100, 50, created_s=1.0)
    assert between(before, _reading(5, 500, 90, created_s=2.0)) is None
    assert between(before, _reading(5, 500, 90, created_s=1.0)) is not None
    assert between(_reading(0, 1, 1, created_s=None), _reading(5, 2, 2, created_s=2.0)) is not None


def test_an_engine_that_came_counts_from_its_second_reading_and_one_that_went_ends_nothing() -> None:
    def both(at_s: float, names: dict[str, int]) -> Reading:
        engines = {
            EngineName("demo", name): EngineMetrics(Counters(Acceptance(drafts, drafts, 0, (0,))))
            for name, drafts in names.items()
        }
        return Reading(at_s, Metrics(engines))

    found = between(both(0, {"0": 10, "1": 70}), both(5, {"0": 15, "2": 900}))
    assert found is not None
    assert {name.engine: counted.acceptance.drafts for name, counted in found.engines.items()} == {"0": 5}
