"""A hang is told from idleness and from work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics.counters import Counters, EngineName
from specserve.metrics.prometheus import EngineMetrics, Metrics
from specserve.serve.events import Hangs
from specserve.serve.health import ProgressWatch


def at(tokens: int, *, running: int = 0, waiting: int = 0) -> Metrics:
    engine = EngineMetrics(Counters(generation_tokens=tokens), running, waiting)
    return Metrics({EngineName("demo", "0"): engine})


def test_requests_that_wait_for_a_minute_without_a_token_are_a_hang_until_one_comes() -> None:
    watch = ProgressWatch()
    assert watch.look(at(10, running=1), at_s=0) is None
    assert watch.look(at(10, running=1), at_s=59) is None
    assert watch.look(at(10, running=1, waiting=2), at_s=61) == Hangs(61, 1, 2)
    assert watch.look(at(11, running=1), at_s=62) is None
    assert watch.look(at(11, running=1), at_s=100) is None


def test_waiting_alone_counts_too() -> None:
    watch = ProgressWatch()
    watch.look(at(0, waiting=3), at_s=0)
    assert watch.look(at(0, waiting=3), at_s=60) == Hangs(60, 0, 3)


def test_idle_time_is_no_hang_and_does_not_count_for_one() -> None:
    watch = ProgressWatch()
    assert all(watch.look(at(10), at_s=float(second)) is None for second in range(0, 600, 15))
    assert watch.look(at(10, running=1), at_s=600) is None
    assert watch.look(at(10, running=1), at_s=630) is None


def test_a_server_that_gives_no_metrics_is_not_judged() -> None:
    watch = ProgressWatch()
    assert [watch.look(None, at_s=float(second)) for second in range(0, 600, 15)] == [None] * 40


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 30)), max_size=30))
def test_whoever_gets_tokens_at_each_look_never_hangs(looks: list[tuple[int, int, int]]) -> None:
    watch, now_s = ProgressWatch(), 0
    for tokens, (running, waiting, step_s) in enumerate(looks):
        now_s += step_s
        assert watch.look(at(tokens, running=running, waiting=waiting), at_s=now_s) is None
