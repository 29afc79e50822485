"""A whole tune against a machine whose truth is known: what it predicts, chooses, and says of bad drafts."""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specserve.measure.tune.candidates import ladder
from specserve.measure.tune.choose import Choice, choose, speedups
from specserve.measure.tune.estimate import acceptance_length
from specserve.measure.tune.observe import StepModel
from specserve.measure.tune.plan import TuneLaunch, TunePlan
from specserve.measure.tune.predict import Prediction, predict
from specserve.measure.tune.result import better_rates, causes, drifted, why_none
from specserve.metrics.counters import Acceptance

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from tune_machine import KEYS, Machine, measured, prompts, swept, texts, tune_plan

ROOT = Path(__file__).parents[3]
LOADS = (1, 2, 4, 8)
LADDER = ladder(LOADS, most_tokens=8, most_requests=16)
MEMORY_BOUND = StepModel(0.027, 0.0004, (), 0.001, 0.0025, 0.0001)
COMPUTE_BOUND = StepModel(0.02, 0.003, ((16, 0.002),), 0.001, 0.0025, 0.0003)
COSTS_UNDER_LOAD = StepModel(0.027, 0.0004, ((8, 0.005),), 0.001, 0.0025, 0.0003)
AS_TARGET = StepModel(0.027, 0.0004, (), 0.0, 0.0275, 0.0)


def known(
    truth: StepModel, *, chance: float, has_ladder: bool = True
) -> tuple[Prediction, TunePlan, dict[int, dict[int, float]]]:
    plan = tune_plan(rungs=LADDER if has_ladder else {})
    chosen = {"code": prompts(12)}
    machine = Machine(truth, texts(prompts=chosen["code"], chance=chance))
    found = predict(plan, measured(machine, plan, chosen), plan.candidates[0])
    return found, plan, swept(machine, plan, chosen)


def known_of_two_launches(
    truth: StepModel, *, chance: float
) -> tuple[Prediction, dict[int, dict[int, float]]]:
    """Where a launch has one K: K_max and 2."""
    plan = tune_plan(rungs={})
    own = plan.candidates[0]
    few = TuneLaunch(replace(own.launches[0].arm, name="few"), 2)
    own = replace(own, launches=(*own.launches, few), ladder_obstacle="it has none")
    plan, chosen = replace(plan, candidates=(own,)), {"code": prompts(12)}
    machine = Machine(truth, texts(prompts=chosen["code"], chance=chance))
    found = predict(plan, measured(machine, plan, chosen), own)
    return found, swept(machine, plan, chosen)


def misses(found: Prediction, truth: Mapping[int, Mapping[int, float]]) -> list[float]:
    return [
        abs(row.predicted.output_tokens_per_s / truth[row.concurrency][row.num_speculative_tokens] - 1)
        for row in found.rows
    ]


@pytest.mark.parametrize("truth", [MEMORY_BOUND, COMPUTE_BOUND])
@pytest.mark.parametrize("chance", [0.4, 0.7, 0.9])
def test_two_launches_find_what_nine_would_have_found(truth: StepModel, chance: float) -> None:
    found, _, sweep = known(truth, chance=chance)
    assert statistics.median(misses(found, sweep)) <= 0.05
    table = speedups(found.rows, objective="throughput")
    for load, rates in table.items():
        best = max((tokens for tokens in sweep[load] if tokens), key=lambda tokens: sweep[load][tokens])
        mine = max(rates, key=lambda tokens: rates[tokens])
        assert sweep[load][mine] >= 0.97 * sweep[load][best]


class Demo:
    """Step times of the demo as its sweep measured them (tests/data/demo_sweep.json), every K a server of its own."""

    chance = 0.8

    def __init__(self) -> None:
        points = json.loads((ROOT / "tests" / "data" / "demo_sweep.json").read_text(encoding="utf-8"))[
            "points"
        ]
        plain = {
            row["concurrency"]: row["output_tokens_per_s"]
            for row in points
            if (row["workload"], row["num_speculative_tokens"]) == ("code", 0)
        }
        self._s = {
            (row["concurrency"], row["num_speculative_tokens"]): row["concurrency"]
            * acceptance_length(self.chance, tokens=row["num_speculative_tokens"])
            / (plain[row["concurrency"]] * row["speedup"])
            for row in points
            if row["workload"] == "all"
        }

    def at(self, batch: int, tokens: int) -> float:
        """Between and beyond the loads of the sweep in proportion."""
        at_load = [self._s[load, tokens] for load in LOADS]
        return float(np.interp(batch, LOADS, at_load)) * (1 + 0.06 * max(0, batch - LOADS[-1]))


def calm(launch: int, now_s: float) -> float:
    return 1.0


def noisy(launch: int, now_s: float) -> float:
    """Beside neighbours: for a third of a second each, 0 to 25 % longer."""
    return 1 + 0.25 * random.Random(f"{launch} {int(now_s * 3)}").random() ** 2


@pytest.mark.parametrize("mood", [calm, noisy])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_choice_is_within_3_percent_of_a_sweep_that_was_measured(
    mood: Callable[[int, float], float], seed: int
) -> None:
    wanted, chosen = tune_plan(rungs=LADDER), {"code": prompts(12, tokens=48)}
    demo = texts(prompts=chosen["code"], chance=Demo.chance, seed=seed)
    machine = Machine(Demo(), demo, prefill_s=0.15)
    passes = measured(replace(machine, mood=mood), wanted, chosen)
    found = predict(wanted, passes, wanted.candidates[0])
    sweep = swept(machine, wanted, chosen)
    choice = choose([found], objective="throughput")
    for load, rates in sweep.items():
        assert rates[choice.num_speculative_tokens_by_concurrency[load]] >= 0.97 * max(rates.values())
    truth = {
        (row.concurrency, row.num_speculative_tokens): sweep[row.concurrency][row.num_speculative_tokens]
        / sweep[row.concurrency][0]
        for row in found.rows
    }
    off = [
        abs(row.predicted.speedup.value / truth[row.concurrency, row.num_speculative_tokens] - 1)
        for row in found.rows
    ]
    held = [
        row.predicted.speedup.low
        <= truth[row.concurrency, row.num_speculative_tokens]
        <= row.predicted.speedup.high
        for row in found.rows
    ]
    assert statistics.median(off) <= 0.06
    assert statistics.fmean(held) >= 0.9


@pytest.mark.parametrize("chance", [0.5, 0.8])
def test_without_a_ladder_the_prediction_is_rougher_and_still_of_use(chance: float) -> None:
    found, _, sweep = known(MEMORY_BOUND, chance=chance, has_ladder=False)
    assert statistics.median(misses(found, sweep)) <= 0.10


@pytest.mark.parametrize("truth", [MEMORY_BOUND, COMPUTE_BOUND])
def test_where_no_schedule_is_followed_two_launches_and_one_k_for_all_loads(truth: StepModel) -> None:
    found, sweep = known_of_two_launches(truth, chance=0.7)
    assert statistics.median(misses(found, sweep)) <= 0.05
    choice = choose([found], objective="throughput")
    assert choice.num_speculative_tokens_per_batch_size is None
    assert len(set(choice.num_speculative_tokens_by_concurrency.values())) == 1


def test_a_draft_of_which_nothing_is_accepted_is_best_left_out() -> None:
    found, wanted, _ = known(MEMORY_BOUND, chance=0.0)
    choice = choose([found], objective=wanted.objective)
    assert not choice.speculates
    assert choice.speculation is None
    reason = why_none(found.rows, steps=next(iter(found.models.values())))
    assert reason is not None and "next to nothing is accepted" in reason


def test_no_prediction_is_surer_than_a_step_time_can_be_measured() -> None:
    found, _, _ = known(MEMORY_BOUND, chance=1.0)  # every request of every prompt is accepted alike
    widths = [math.log(row.predicted.speedup.high / row.predicted.speedup.low) / 2 for row in found.rows]
    assert min(widths) == pytest.approx(0.03)  # where the step was timed; elsewhere more
    assert max(widths) == pytest.approx(0.05)


def test_no_single_cause_is_named_where_a_cheap_draft_is_accepted_and_gains_nothing() -> None:
    found, _, _ = known(COMPUTE_BOUND, chance=0.6)
    steps = next(iter(found.models.values()))
    losing = [row for row in found.rows if row.predicted.speedup.value < 1.0]
    assert losing and max(row.mean_acceptance_length.value for row in losing) > 1.2
    assert why_none(losing, steps=steps) is None


def test_a_draft_as_large_as_the_target_gains_nothing_though_all_is_accepted() -> None:
    found, wanted, _ = known(AS_TARGET, chance=1.0)
    choice = choose([found], objective=wanted.objective)
    assert not choice.speculates
    reason = why_none(found.rows, steps=next(iter(found.models.values())))
    assert reason is not None
    assert "a draft step costs" in reason and "no gain is possible" in reason and "100%" in reason


def test_where_it_costs_at_the_highest_load_a_range_of_k_0_ends_the_schedule() -> None:
    found, wanted, sweep = known(COSTS_UNDER_LOAD, chance=0.7)
    assert max(sweep[1].values()) > 1.3 * sweep[1][0]
    assert max(rate for k, rate in sweep[8].items() if k) < 0.8 * sweep[8][0]
    assert found.zero_cost == pytest.approx(0.9, abs=0.03)
    choice = choose([found], objective=wanted.objective)
    assert (
        choice.speculates
        and choice.speculation is not None
        and choice.num_speculative_tokens_per_batch_size is not None
    )
    assert choice.num_speculative_tokens_by_concurrency[8] == 0
    assert all(choice.num_speculative_tokens_by_concurrency[load] > 0 for load in (1, 2, 4))
    assert [tokens for _, _, tokens in choice.num_speculative_tokens_per_batch_size].index(0) == len(
        choice.num_speculative_tokens_per_batch_size
    ) - 1
    assert choice.speculation["num_speculative_tokens_per_batch_size"][-1][2] == 0


def test_where_a_small_k_is_better_than_a_range_of_k_0_there_is_none() -> None:
    found, wanted, sweep = known(COMPUTE_BOUND, chance=0.75)
    assert max(rate for k, rate in sweep[8].items() if k) > 0.9 * sweep[8][0]
    choice = choose([found], objective=wanted.objective)
    assert choice.speculates
    assert 0 not in choice.num_speculative_tokens_by_concurrency.values()


def test_the_choice_reserves_no_more_tokens_than_it_uses() -> None:
    found, wanted, _ = known(COMPUTE_BOUND, chance=0.9)
    choice = choose([found], objective=wanted.objective)
    assert choice.speculates and choice.speculation is not None
    assert choice.speculation["num_speculative_tokens"] == max(
        choice.num_speculative_tokens_by_concurrency.values()
    )
    assert choice.speculation["model"] == KEYS["model"]
    assert (choice.num_speculative_tokens_per_batch_size is None) == (
        "num_speculative_tokens_per_batch_size" not in choice.speculation
    )


def test_requests_that_had_nothing_drafted_count_with_one_token_a_step() -> None:
    chosen = {"code": prompts(12)}
    wanted = tune_plan(rungs={}, loads=(1,))
    machine = Machine(MEMORY_BOUND, texts(prompts=chosen["code"], chance=1.0))
    passes = measured(machine, wanted, chosen)
    passes[-1] = replace(
        passes[-1],
        requests=tuple(
            replace(each, steps=()) if index % 2 else each for index, each in enumerate(passes[-1].requests)
        ),
    )
    own = wanted.candidates[0]
    found = predict(wanted, passes, own)
    row = next(row for row in found.rows if row.num_speculative_tokens == 8)
    assert 1.0 < row.mean_acceptance_length.value < 2.1


def test_a_server_that_does_not_tell_its_steps_says_nothing_of_its_drafts() -> None:
    chosen = {"code": prompts(12)}
    wanted = tune_plan(rungs={}, loads=(1,))
    machine = Machine(MEMORY_BOUND, texts(prompts=chosen["code"], chance=0.8))
    passes = measured(machine, wanted, chosen)
    silent = tuple(replace(each, steps=()) for each in passes[-1].requests)
    passes[-1] = replace(passes[-1], requests=silent, acceptance=Acceptance(10, 80, 40, (5,) * 8))
    assert predict(wanted, passes, wanted.candidates[0]).rows == ()


def test_where_no_step_could_be_timed_nothing_is_said() -> None:
    chosen = {"code": prompts(12, tokens=1)}
    wanted = tune_plan(rungs={}, loads=(1,))
    machine = Machine(MEMORY_BOUND, texts(prompts=chosen["code"], chance=0.8))
    found = predict(wanted, measured(machine, wanted, chosen), wanted.candidates[0])
    assert found.rows == ()


def test_nothing_is_said_above_what_was_measured() -> None:
    found, _, _ = known(MEMORY_BOUND, chance=0.9)
    assert max(row.num_speculative_tokens for row in found.rows) == found.info.measured_with == 8


def test_a_better_draft_is_preferred_and_the_profiles_own_where_both_are_alike() -> None:
    good, wanted, _ = known(MEMORY_BOUND, chance=0.9)
    poor, _, _ = known(MEMORY_BOUND, chance=0.5)

    def named(each: Prediction, name: str, *, is_own: bool) -> Prediction:
        return replace(each, candidate=replace(each.candidate, name=name, is_own=is_own))

    def chosen(*each: Prediction) -> Choice:
        return choose(each, objective=wanted.objective)

    assert chosen(named(poor, "own", is_own=True), named(good, "other", is_own=False)).candidate == "other"
    assert chosen(named(good, "own", is_own=True), named(good, "other", is_own=False)).candidate == "own"


@pytest.mark.parametrize("truth", [MEMORY_BOUND, COMPUTE_BOUND, AS_TARGET])
def test_causes_account_for_all_of_what_is_missing(truth: StepModel) -> None:
    found, _, _ = known(truth, chance=0.7)
    model = next(iter(found.models.values()))
    for row in found.rows:
        told = causes(row, steps=model, kv_tokens=(90, 100))
        assert sum(cause.share for cause in told if cause.share is not None) == pytest.approx(1.0)
        assert all(cause.share is None or cause.share >= 0 for cause in told)
        assert told[-1].told == "KV cache of 90 tokens instead of 100 (-10%)"


def test_a_step_that_takes_less_than_one_of_the_baseline_is_told() -> None:
    found, _, _ = known(MEMORY_BOUND, chance=0.7)
    row, model = found.rows[0], next(iter(found.models.values()))
    plain_ms = 1000 * model.at(row.concurrency, 0)
    said = {
        share: " ".join(drifted(replace(row, step_ms=share * plain_ms), steps=model)) for share in (0.8, 1.2)
    }
    assert "took 0.80 times as long as one of" in said[0.8] and "less than predicted" in said[0.8]
    assert said[1.2] == ""


def test_the_largest_cause_is_the_one_that_was_made() -> None:
    def largest(truth: StepModel, chance: float, load: int) -> str:
        found, _, _ = known(truth, chance=chance)
        row = next(row for row in found.rows if (row.concurrency, row.num_speculative_tokens) == (load, 4))
        return causes(row, steps=next(iter(found.models.values())))[0].name

    assert largest(AS_TARGET, 1.0, 1) == "draft cost"
    assert largest(MEMORY_BOUND, 0.2, 1) == "acceptance"
    assert largest(COMPUTE_BOUND, 0.95, 8) == "verification cost"


def test_a_measured_rate_above_the_choice_is_explained() -> None:
    found, wanted, _ = known(MEMORY_BOUND, chance=0.7)
    choice = choose([found], objective=wanted.objective)
    chosen = choice.num_speculative_tokens_by_concurrency[1]
    (at,) = (
        row.predicted.output_tokens_per_s
        for row in found.rows
        if (row.concurrency, row.num_speculative_tokens) == (1, chosen)
    )

    def told(tokens: int, *, predicted: float) -> list[str]:
        rows = [
            replace(
                row,
                predicted=replace(row.predicted, output_tokens_per_s=predicted * at),
                measured=replace(row.measured, output_tokens_per_s=1.2 * at),
            )
            if (row.concurrency, row.num_speculative_tokens) == (1, tokens)
            else replace(row, measured=replace(row.measured, output_tokens_per_s=None))
            for row in found.rows
        ]
        return list(better_rates(choice, replace(found, rows=tuple(rows)), []))

    other = chosen - 1
    (noisy,) = told(other, predicted=0.9)
    assert f"at concurrency 1, code: K = {other} measured {1.2 * at:.1f} tokens/s" in noisy
    assert (
        f"the {at:.1f} predicted for the chosen K = {chosen}: the choice compares predictions, because"
        in noisy
    )
    (merged,) = told(other, predicted=1.01)
    assert "one K serves several loads" in merged
    assert told(chosen, predicted=1.0) == []


@pytest.mark.parametrize(
    ("load", "cost", "why"),
    [
        (8, None, "runs on the server with the draft, which was not measured at K = 0"),
        (8, 0.9, "runs on the server with the draft, which is 0.90x as fast"),
        (1, 0.9, "runs on the server with the draft, and is chosen only for the highest load (8)"),
    ],
)
def test_a_faster_server_without_speculation_is_explained(load: int, cost: float | None, why: str) -> None:
    found, wanted, _ = known(MEMORY_BOUND, chance=0.7)
    choice = choose([found], objective=wanted.objective)
    plain = [
        replace(row, num_speculative_tokens=0, measured=replace(row.measured, output_tokens_per_s=1e4))
        for row in found.rows
        if (row.concurrency, row.num_speculative_tokens) == (load, 1)
    ]
    (note,) = better_rates(choice, replace(found, zero_cost=cost), plain)
    assert note.startswith(f"at concurrency {load}, code: K = 0 measured 10000.0 tokens/s") and why in note
