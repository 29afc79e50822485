"""Step times between measured points: exact where the form holds, and close where it does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.measure.tune.observe import StepModel, Timed, fit

TRUTHS = st.builds(
    StepModel,
    fixed_s=st.floats(0.001, 0.1),
    per_token_s=st.floats(0.0, 0.01),
    knees=st.just(()),
    speculating_s=st.floats(0.0, 0.01),
    per_draft_s=st.floats(0.0001, 0.01),
    per_draft_and_request_s=st.floats(0.0, 0.001),
)
PLAN = [
    (1, 0),
    (2, 0),
    (4, 0),
    (8, 0),
    (1, 8),
    (2, 4),
    (3, 1),
    (4, 3),
    (5, 8),
    (6, 4),
    (7, 1),
    (8, 2),
    (9, 8),
]


def timed(truth: StepModel, *, noise: float = 0.0) -> list[Timed]:
    return [
        Timed(batch, tokens, truth.at(batch, tokens) * (1 + (noise if index % 2 else -noise)))
        for index, (batch, tokens) in enumerate(PLAN)
    ]


@settings(max_examples=30, deadline=None)
@given(TRUTHS)
def test_where_the_form_holds_every_k_at_every_load_is_found(truth: StepModel) -> None:
    found = fit(timed(truth))
    for batch in (1, 2, 4, 8):
        for tokens in range(9):
            assert found.at(batch, tokens) == pytest.approx(truth.at(batch, tokens), rel=0.02)


@settings(max_examples=30, deadline=None)
@given(TRUTHS, st.floats(0.0, 0.03))
def test_measured_points_are_met_exactly(truth: StepModel, noise: float) -> None:
    points = timed(truth, noise=noise)
    found = fit(points)
    for each in points:
        assert found.at(each.batch, each.tokens) == pytest.approx(each.step_s, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(TRUTHS)
def test_noise_of_two_percent_is_not_made_much_larger(truth: StepModel) -> None:
    found = fit(timed(truth, noise=0.02))
    for batch in (1, 2, 4, 8):
        for tokens in range(9):
            assert found.at(batch, tokens) == pytest.approx(truth.at(batch, tokens), rel=0.10)


def test_a_knee_where_the_target_becomes_compute_bound_is_found() -> None:
    truth = StepModel(0.03, 0.0, ((24, 0.001),), 0.001, 0.002, 0.0)
    found = fit(timed(truth))
    for batch in (1, 2, 4, 8):
        for tokens in range(9):
            assert found.at(batch, tokens) == pytest.approx(truth.at(batch, tokens), rel=0.05)


BETWEEN = (3, 5, 6, 9, 12, 16)
KERNELS = ((1, 1.0), (2, 1.2), (3, 1.0), (4, 0.85), (8, 1.1), (9, 1.0), (16, 0.95), (24, 1.0))


def test_kernels_that_are_better_at_some_numbers_are_found_by_plain_steps() -> None:
    truth = StepModel(0.06, 0.0, ((5, 0.0045),), 0.001, 0.003, 0.0001, KERNELS)
    points = timed(truth) + [Timed(batch, 0, truth.at(batch, 0)) for batch in BETWEEN]
    found = fit(points)
    off = [
        abs(found.at(batch, tokens) / truth.at(batch, tokens) - 1)
        for batch in (1, 2, 4, 8)
        for tokens in range(9)
    ]
    assert sorted(off)[len(off) // 2] < 0.01
    assert found.at(1, 1) == pytest.approx(truth.at(1, 1), rel=0.03)  # a smooth form is 15 % off here
    assert found.at(2, 1) == pytest.approx(truth.at(2, 1), rel=0.03)
    assert found.draft_s(4, 3) == pytest.approx(
        truth.draft_s(4, 3), rel=0.05
    )  # kernels are no cost of drafts


def test_the_published_model_of_a_gpu_has_its_knee_at_the_ridge_of_its_roofline() -> None:
    # Llama-3.1-8B on an H100: 5.886 ms + 21.0 us for each token
    points = [
        Timed(batch, tokens, 5.886e-3 + 21.0e-6 * batch * (tokens + 1) + (2.135e-3 + 1.207e-3) * (tokens > 0))
        for batch, tokens in PLAN
    ]
    found = fit(points)
    assert found.fixed_s / found.per_token_s == pytest.approx(280, rel=0.02)


def test_two_points_are_enough_to_say_something() -> None:
    found = fit([Timed(1, 0, 0.03), Timed(1, 4, 0.05)])
    assert found.at(1, 0) == pytest.approx(0.03)
    assert found.at(1, 4) == pytest.approx(0.05)
    assert 0.03 <= found.at(1, 2) <= 0.05


@pytest.mark.parametrize("points", [[], [Timed(1, 0, 0.0)], [Timed(0, 0, 1.0)]])
def test_what_is_no_time_is_refused(points: list[Timed]) -> None:
    with pytest.raises(ValueError, match="step times"):
        fit(points)


@given(
    st.lists(
        st.builds(Timed, st.integers(1, 8), st.integers(0, 8), st.floats(0.001, 10.0)),
        min_size=1,
        max_size=14,
    )
)
def test_no_measured_step_is_free_whatever_the_others_took(points: list[Timed]) -> None:
    model = fit(points)
    assert all(model.at(each.batch, each.tokens) > 0 for each in points)
