"""What acceptance figures mean, and how two readings of the counters are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.metrics.counters import (
    Acceptance,
    of_request,
    since_by_engine,
    total_acceptance,
)

counts = st.integers(min_value=0, max_value=2**53)


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    """Counters as vLLM can write them: position i + 1 is accepted only where position i was."""
    drafts = draw(st.integers(0, 10**6))
    positions = sorted(draw(st.lists(st.integers(0, drafts), max_size=8)), reverse=True)
    return Acceptance(drafts, drafts * len(positions), sum(positions), tuple(positions))


def test_the_figures_of_a_known_run() -> None:
    run = Acceptance(
        drafts=100, draft_tokens=400, accepted_tokens=264, accepted_per_position=(90, 74, 58, 42)
    )
    assert run.acceptance_rate == pytest.approx(0.66)
    assert run.mean_acceptance_length == pytest.approx(3.64)
    assert run.per_position == pytest.approx((0.90, 0.74, 0.58, 0.42))


def test_without_a_draft_there_is_no_figure_rather_than_zero() -> None:
    nothing = Acceptance()
    assert nothing.acceptance_rate is None
    assert nothing.mean_acceptance_length is None
    assert nothing.per_position == ()


@given(acceptances())
def test_a_mean_length_lies_between_one_and_k_plus_one(run: Acceptance) -> None:
    length = run.mean_acceptance_length
    if length is not None:
        assert 1 <= length <= len(run.accepted_per_position) + 1
        assert length == pytest.approx(1 + sum(run.per_position))


@given(acceptances(), acceptances())
def test_the_gain_between_two_readings_is_what_happened_between_them(
    before: Acceptance, gain: Acceptance
) -> None:
    now = before + gain
    found = since_by_engine({"0": before}, now={"0": now})
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (
        gain.drafts,
        gain.draft_tokens,
        gain.accepted_tokens,
    )
    assert found.accepted_per_position[: len(gain.accepted_per_position)] == gain.accepted_per_position
    assert not any(found.accepted_per_position[len(gain.accepted_per_position) :])


def test_a_restarted_engine_counts_from_zero() -> None:
    before = Acceptance(1000, 4000, 2000, (900, 600, 300, 200))
    after_restart = Acceptance(10, 40, 30, (10, 8, 7, 5))
    assert since_by_engine({"0": before}, now={"0": after_restart}) == after_restart


def test_one_counter_that_dropped_is_a_restart_even_if_the_others_grew() -> None:
    before = Acceptance(5, 20, 18, (5, 5, 4, 4))
    now = Acceptance(6, 24, 10, (6, 2, 1, 1))
    assert since_by_engine({"0": before}, now={"0": now}) == now


def test_engines_are_compared_each_with_itself_and_summed() -> None:
    before = {"0": Acceptance(10, 40, 20, (10, 10)), "1": Acceptance(500, 2000, 900, (500, 400))}
    now = {
        "0": Acceptance(15, 60, 30, (15, 15)),
        "1": Acceptance(3, 12, 6, (3, 3)),
        "2": Acceptance(1, 4, 1, (1,)),
    }
    assert since_by_engine(before, now=now) == Acceptance(
        5 + 3 + 1, 20 + 12 + 4, 10 + 6 + 1, (5 + 3 + 1, 5 + 3)
    )


@given(st.lists(acceptances(), max_size=5))
def test_a_total_does_not_depend_on_the_order(parts: list[Acceptance]) -> None:
    assert total_acceptance(parts) == total_acceptance(reversed(parts))


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=9))
def test_a_requests_histogram_gives_its_per_position_counts(histogram: list[int]) -> None:
    steps, k = sum(histogram), len(histogram) - 1
    accepted = sum(j * count for j, count in enumerate(histogram))
    run = of_request(
        {
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_draft_tokens": steps * k,
            "num_accepted_draft_tokens": accepted,
        }
    )
    assert run is not None
    assert run.drafts == steps
    assert len(run.accepted_per_position) == k
    assert sum(run.accepted_per_position) == run.accepted_tokens == accepted


@pytest.mark.parametrize(
    "summary",
    [
        None,
        [],
        "speculation",
        {},
        {"num_spec_steps": 1, "num_draft_tokens": 4, "num_accepted_draft_tokens": 2},
        {
            "num_spec_steps": -1,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
            "acceptance_histogram": [],
        },
        {
            "num_spec_steps": 1,
            "num_draft_tokens": "4",
            "num_accepted_draft_tokens": 2,
            "acceptance_histogram": [],
        },
        {
            "num_spec_steps": 1,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
            "acceptance_histogram": [0.5],
        },
        {
            "num_spec_steps": True,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
            "acceptance_histogram": [],
        },
    ],
)
def test_anything_that_vllm_does_not_write_is_no_summary(summary: object) -> None:
    assert of_request(summary) is None
