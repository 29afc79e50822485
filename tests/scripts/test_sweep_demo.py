"""The sweep's figures: speedups free of the machine's drift, half-widths for the prompts that were sent."""

import math
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.measure.bench.arms import BASELINE, Session
from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Point
from specserve.measure.bench.schedule import Block
from tests.measure.bench.making import request

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import sweep_demo
import sweepcompare
import sweepdata
from sweepdata import Row

GAINS = {1: 1.4, 2: 1.7, 3: 1.9, 4: 2.0, 5: 1.95, 6: 1.8, 7: 1.6, 8: 1.5}
EVERY = frozenset({BASELINE, *map(sweepdata.arm_name, GAINS)})
GROUPS = 3
AT = ("code", 0.0, 1)
TOGETHER = (Session(0, tuple(sorted(EVERY))),)


def point(group: int) -> Point:
    return Point(sweepdata.group_name("code", 1, group), 0.0, 1)


def block_of(
    number: int, arms: Collection[str], *, rng: random.Random, noise: float, drift: float, unlike: float = 0.2
) -> Iterator[Pass]:
    """One turn of all arms: 10 tokens/s without speculation, in a mood that all of them share.

    Groups of prompts are `unlike`: the later ones are drafted better.
    """
    mood = math.exp(rng.uniform(-drift, drift))
    group = number % GROUPS
    for arm in sorted(arms):
        gain = 1.0 if arm == BASELINE else GAINS[int(arm[1:])] * (1 + unlike * (group - 1))
        rate = 10 * gain * mood * math.exp(rng.gauss(0, noise))
        yield Pass(
            launch=0,
            block=number,
            point=point(group),
            arm=arm,
            duration_s=100 / rate,
            client_cpu=0.1,
            requests=(request(tokens=100),),
        )


def passes(
    *, rounds: int, noise: float, seed: int = 0, drift: float = 0.2, unlike: float = 0.2
) -> list[Pass]:
    """All arms in every block."""
    rng = random.Random(seed)
    numbers = range(rounds * GROUPS)
    turns = (block_of(number, EVERY, rng=rng, noise=noise, drift=drift, unlike=unlike) for number in numbers)
    return [each for turn in turns for each in turn]


def rows(found: Sequence[Pass]) -> dict[int, Row]:
    return {row["num_speculative_tokens"]: row for row in sweepdata.rows(AT, found, {})}


def truth(tokens: int) -> float:
    """Of prompts that are written one after another: times add up, not speeds."""
    return 3 / sum(1 / (GAINS[tokens] * (1 + 0.2 * (group - 1))) for group in range(GROUPS))


def test_a_drift_of_the_machine_is_not_in_the_speedups() -> None:
    told = rows(passes(rounds=2, noise=0.0, unlike=0.0))
    assert sorted(told) == list(range(9))
    for tokens, gain in GAINS.items():
        assert told[tokens]["speedup"] == pytest.approx(gain, rel=1e-4)
        assert told[tokens]["half_width"] == pytest.approx(0, abs=1e-4)


def test_groups_of_prompts_weigh_by_their_time() -> None:
    told = rows(passes(rounds=2, noise=0.0, drift=0.0))
    for tokens in GAINS:
        assert told[tokens]["speedup"] == pytest.approx(truth(tokens), rel=1e-4)


def test_the_half_width_covers_the_truth_in_95_of_100_sweeps() -> None:
    held = wide = 0
    for seed in range(150):
        told = rows(passes(rounds=2, noise=0.02, seed=seed, unlike=0.0))
        for tokens in (1, 5):
            held += abs(math.log(told[tokens]["speedup"] / GAINS[tokens])) <= told[tokens]["half_width"]
            wide += 1
    assert 0.91 < held / wide < 0.985


def test_a_pass_in_which_the_machine_stood_still_hardly_moves_anything() -> None:
    whole = passes(rounds=4, noise=0.01, unlike=0.0)
    late = [
        replace(each, duration_s=each.duration_s * 1.5)
        if (each.block, each.arm) in {(2, "k4"), (7, "k3")}
        else each
        for each in whole
    ]
    calm, told = rows(whole), rows(late)
    for tokens in GAINS:
        assert told[tokens]["speedup"] == pytest.approx(calm[tokens]["speedup"], rel=0.01)
        assert told[tokens]["half_width"] < 2 * calm[tokens]["half_width"]


def test_one_round_says_nothing_of_its_width() -> None:
    assert rows(passes(rounds=1, noise=0.02))[4]["half_width"] == 9.0


def test_a_block_without_the_server_without_speculation_is_left_out() -> None:
    whole = passes(rounds=3, noise=0.02)
    cut = [each for each in whole if each.block != 8 or each.arm == "k1"]
    told = rows(cut)
    assert told[1]["blocks"] == told[5]["blocks"] == 8
    assert not rows([each for each in whole if each.arm == "k1"])


def test_k_that_fall_behind_get_no_more_blocks_and_the_best_ones_get_them_until_they_are_known() -> None:
    rng = random.Random(3)
    found: list[Pass] = []
    asked: list[frozenset[str]] = []
    for number in range(30 * GROUPS):
        arms = frozenset(
            sweep_demo.still(Block(number, point(number % GROUPS), (), 0), found, sessions=TOGETHER)
        )
        asked.append(arms)
        found += block_of(number, arms, rng=rng, noise=0.02, drift=0.2)
    assert asked[:2] == [EVERY] * 2
    assert asked[-1] == frozenset()
    assert all(BASELINE in arms for arms in asked if arms)
    told = rows(found)
    assert told[4]["half_width"] <= sweepdata.WIDEST
    assert told[1]["blocks"] < told[4]["blocks"]
    assert "* K = 4" in "\n".join(sweepdata.table(sweepdata.data(found, {})))


def test_a_k_that_is_not_measured_in_a_group_stays_as_far_from_the_others_as_it_is_elsewhere() -> None:
    cut = [
        each for each in passes(rounds=2, noise=0.0, drift=0.0) if each.arm != "k1" or each.block % GROUPS < 2
    ]
    assert rows(cut)[1]["speedup"] == pytest.approx(truth(1), rel=1e-4)
    assert rows(cut)[1]["blocks"] == 4


def test_over_three_workloads_a_half_width_is_less_by_the_root_of_three_but_for_that_of_steps() -> None:
    of_one = [
        {
            "num_speculative_tokens": 1,
            "speedup": 2.0,
            "half_width": 0.05,
            "half_width_of_steps": 0.04,
            "blocks": 4,
        }
    ]
    (row,) = sweepdata.over_all([of_one] * 3)
    assert row["half_width"] == pytest.approx(math.hypot(0.03 / math.sqrt(3), 0.04))
    assert row["speedup"] == pytest.approx(2.0) and row["blocks"] == 12


def test_a_session_asks_for_its_own_k_and_for_none_of_another() -> None:
    first, second = Session(0, (BASELINE, "k3", "k4")), Session(0, (BASELINE, "k5", "k6"), first_block=100)
    found = [each for each in passes(rounds=1, noise=0.02) if each.arm in first.arms]
    asked = sweep_demo.still(Block(101, point(0), (), 0), found, sessions=(first, second))
    assert set(asked) == set(second.arms)
    asked = sweep_demo.still(Block(5, point(0), (), 0), found, sessions=(first, second))
    assert set(asked) == set(first.arms)


def test_a_block_that_is_there_is_not_measured_again() -> None:
    found = passes(rounds=1, noise=0.02)
    assert not sweep_demo.still(Block(0, point(0), (), 0), found, sessions=TOGETHER)


def test_a_tune_is_compared_with_the_best_of_each_point() -> None:
    sweep = {"points": list(rows(passes(rounds=2, noise=0.0, drift=0.0)).values())}
    said = [
        {
            "workload": "code",
            "concurrency": 1,
            "num_speculative_tokens": tokens,
            "predicted": {
                "speedup": {"value": truth(tokens) * 1.05},
                "output_tokens_per_s": truth(tokens) * sweep["points"][0]["output_tokens_per_s"] * 1.08,
            },
        }
        for tokens in GAINS
    ]
    tune = {
        "choice": {"num_speculative_tokens_by_concurrency": {"1": 5}},
        "points": said,
        "launches": 3,
    }
    told = "\n".join(sweepcompare.compared(sweep, [tune]))
    assert "chose K = 5" in told
    assert "best K = 4, 1.946x: 2.5% less" in told
    assert "predicted best K = 4" in told
    assert "best by prediction: 0.0% below the best in the median, 0.0% at most" in told
    assert "speedup predicted against measured: 5.0% off in the median of 8" in told
    assert "tokens/s predicted against measured: 8.0% off in the median of 8" in told
    assert "3 launches instead of 9" in told
