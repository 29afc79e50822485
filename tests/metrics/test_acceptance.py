"""What acceptance figures mean, and how two readings of the counters are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics.counters import Acceptance, since_by_engine, total_acceptance


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    """Counters as vLLM can write them: position i + 1 is accepted only where position i was."""
    drafts = draw(st.integers(0, 10**6))
    positions = sorted(draw(st.lists(st.integers(0, drafts), max_size=8)), reverse=True)
    return Acceptance(drafts, drafts * len(positions), sum(positions), tuple(positions))


def test_the_figures_of_a_known_run() -> None:
    run = Acceptance(100, 400, 264, (90, 74, 58, 42))
    assert run.acceptance_rate == pytest.approx(0.66)
    assert run.mean_acceptance_length == pytest.approx(3.64)
    assert run.per_position == pytest.approx((0.90, 0.74, 0.58, 0.42))


def test_without_a_draft_there_is_no_figure_rather_than_zero() -> None:
    nothing = Acceptance()
    assert (nothing.acceptance_rate, nothing.mean_acceptance_length) == (None, None)
    assert nothing.per_position == ()


@given(acceptances(), acceptances())
def test_the_gain_between_two_readings_is_what_happened_between_them(
    before: Acceptance, gain: Acceptance
) -> None:
    found = since_by_engine({"0": before}, now={"0": before + gain})
    assert (found.drafts, found.accepted_tokens) == (gain.drafts, gain.accepted_tokens)
    places = len(gain.accepted_per_position)
    assert found.accepted_per_position[:places] == gain.accepted_per_position
    assert not any(found.accepted_per_position[places:])


@pytest.mark.parametrize("now", [Acceptance(10, 40, 30, (10, 8)), Acceptance(501, 20, 900, (501, 1))])
def test_an_engine_that_was_restarted_counts_from_zero_and_each_alone(now: Acceptance) -> None:
    """One counter that dropped is a restart, even if the others grew."""
    before = {"0": Acceptance(10, 40, 20, (10, 10)), "1": Acceptance(500, 2000, 900, (500, 400))}
    other = Acceptance(15, 60, 30, (15, 15))
    found = since_by_engine(before, now={"0": other, "1": now, "2": Acceptance(1, 4, 1, (1,))})
    parts = (Acceptance(5, 20, 10, (5, 5)), now, Acceptance(1, 4, 1, (1,)))
    assert found == total_acceptance(parts) == total_acceptance(reversed(parts))
