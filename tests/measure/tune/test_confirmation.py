"""What the measured confirmation does to a choice that was predicted, and what a choice must be to be made at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specserve.measure.bench.result import Comparison, Point
from specserve.measure.bench.variants import Variant
from specserve.measure.statistics import COSTS, INCONCLUSIVE, NO_DIFFERENCE, PAYS, Estimate, Verdict
from specserve.measure.tune.choose import Choice, Confirmed, after, choose
from specserve.measure.tune.plan import Candidate, TuneLaunch
from specserve.measure.tune.predict import Predicted, Prediction, Row

CHOICE = Choice(True, "1.05x at best", "draft_model", {"num_speculative_tokens": 3}, {1: 3, 8: 3})


def confirmed(load: int, speedup: float, word: str) -> Confirmed:
    told = Comparison(
        "tuned",
        "baseline",
        Point("code", 0.0, load),
        Estimate(speedup, speedup * 0.97, speedup * 1.03),
        Verdict(word, "open"),
    )
    return Confirmed(told, 1.05, 10.0, 10.0)


def test_what_costs_everywhere_once_it_is_measured_is_not_chosen() -> None:
    found = after(CHOICE, [confirmed(1, 0.96, COSTS), confirmed(8, 0.90, COSTS)], objective="throughput")
    assert not found.speculates
    assert found.speculation is None
    assert "measured 0.93x over all loads" in found.reason


@pytest.mark.parametrize(
    ("gains", "verdicts"),
    [
        ((1.8, 0.95), (PAYS, COSTS)),
        ((1.1, 1.1), (INCONCLUSIVE, INCONCLUSIVE)),
        ((1.2, 1.2), (PAYS, PAYS)),
    ],
)
def test_what_pays_somewhere_or_is_not_known_to_cost_stays(
    gains: tuple[float, float], verdicts: tuple[str, str]
) -> None:
    measured = [confirmed(1, gains[0], verdicts[0]), confirmed(8, gains[1], verdicts[1])]
    assert after(CHOICE, measured, objective="throughput") is CHOICE


def test_what_pays_somewhere_and_costs_more_elsewhere_is_not_chosen() -> None:
    measured = [confirmed(1, 1.2, PAYS), confirmed(8, 0.5, COSTS)]
    assert not after(CHOICE, measured, objective="throughput").speculates


def test_what_makes_no_difference_is_not_worth_a_second_model() -> None:
    found = after(CHOICE, [confirmed(1, 1.01, NO_DIFFERENCE)], objective="throughput")
    assert not found.speculates


def test_without_a_confirmation_the_choice_is_what_was_predicted() -> None:
    assert after(CHOICE, [], objective="throughput") is CHOICE


@pytest.mark.parametrize(("within", "plain", "stays"), [(0.6, 1.0, False), (1.0, 0.9, True)])
def test_by_goodput_requests_beyond_the_limits_do_not_count(within: float, plain: float, stays: bool) -> None:
    measured = replace(confirmed(1, 1.1, PAYS), within_limits=within, plain_within_limits=plain)
    assert after(CHOICE, [measured], objective="goodput").speculates is stays
    assert after(CHOICE, [measured], objective="throughput").speculates


@pytest.mark.parametrize(("ratio", "stays"), [(0.8, True), (1.2, False)])
def test_by_time_per_token_that_decides(ratio: float, stays: bool) -> None:
    measured = confirmed(1, 1.0, NO_DIFFERENCE)
    measured = replace(measured, comparison=replace(measured.comparison, tpot_p50_ratio=ratio))
    assert after(CHOICE, [measured], objective="tpot").speculates is stays


def row(load: int, tokens: int, speedup: float) -> Row:
    gain = Estimate(speedup, speedup * 0.9, speedup * 1.1)
    return Row(
        "draft_model", "code", 0.0, load, tokens, Estimate(2.0, 1.9, 2.1), "measured", 1.5, 30.0, "measured",
        Predicted(10.0, 15.0, 60.0, gain),
    )  # fmt: skip


def constant(*rows: Row) -> Prediction:
    """A candidate that follows no schedule."""
    launch = TuneLaunch(Variant("draft_model"), 5)
    own = Candidate(
        "draft_model",
        {"method": "draft_model"},
        is_own=True,
        launches=(launch,),
        ladder_obstacle="it has none",
    )
    return Prediction(own, rows, {}, {}, None)


def test_one_k_for_all_loads_that_costs_over_them_is_not_chosen_for_one_load_where_it_pays() -> None:
    rows = [row(1, 1, 1.05), row(4, 1, 0.6), row(16, 1, 0.6), row(64, 1, 0.6)]
    found = choose([constant(*rows)], objective="throughput")
    assert not found.speculates
    assert "K = 1 at 1 request, is 1.05x, but over all loads" in found.reason


def test_the_gain_that_counts_is_that_of_the_chosen_k() -> None:
    rows = [row(1, 5, 1.04), row(1, 1, 1.00), row(8, 5, 0.7), row(8, 1, 1.00)]
    assert not choose([constant(*rows)], objective="throughput").speculates
