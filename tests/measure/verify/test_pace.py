"""How long an answer may be so that it ends in time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.verify.session import FEWEST_TOKENS, Pace

Seconds = st.floats(0.001, 1000)


@given(
    st.lists(st.tuples(Seconds, st.integers(0, 500)), min_size=1, max_size=20), st.integers(8, 4096), Seconds
)
def test_an_answer_ends_in_time_if_the_pace_holds(
    requests: list[tuple[float, int]], most: int, within_s: float
) -> None:
    pace = Pace()
    for took_s, tokens in requests:
        pace.add(took_s, tokens)
    tokens = pace.tokens(most, within_s=within_s)
    assert min(most, FEWEST_TOKENS) <= tokens <= most
    assert tokens <= FEWEST_TOKENS or tokens * pace.token_s <= within_s


def test_the_last_requests_count() -> None:
    pace = Pace()
    pace.add(100.0, 10)
    slow = pace.tokens(128, within_s=10)
    for _ in range(8):
        pace.add(0.5, 100)
    assert (slow, pace.tokens(128, within_s=10)) == (FEWEST_TOKENS, 128)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_one_thread_may_add_while_another_asks() -> None:
    pace = Pace()
    pace.add(1.0, 10)

    def add() -> None:
        for _ in range(300_000):
            pace.add(1.0, 10)

    adding = threading.Thread(target=add)
    adding.start()
    asked = {round(pace.token_s, 9)}
    while adding.is_alive():
        asked.add(round(pace.token_s, 9))
    adding.join()
    assert asked == {0.12}
