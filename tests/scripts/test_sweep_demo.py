"""The sweep's figures: half-widths that cover the truth, blocks where they are needed, tunes held against it."""

import json
import math
import random
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.bench.plan import Block
from specserve.measure.bench.rundir import Pass
from specserve.measure.bench.variants import BASELINE, Session
from specserve.measure.tune.plan import split
from specserve.measure.workloads.load import load

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import sweep_demo
import sweepcompare
import sweepdata
from sweep_machine import EVERY, GAINS, GROUPS, Sweep

AT = ("code", 0.0, 1)
OVER_ALL = (sweepdata.ALL, 0.0, 1)
TOGETHER = Session(0, tuple(sorted(EVERY)))
STEPS = Sweep(workload=sweepdata.STEPS)


def rows(found: list[Pass], at: tuple[str, float, int] = AT) -> dict[int, dict[str, Any]]:
    return {row["num_speculative_tokens"]: row for row in sweepdata.told(found)[at]}


def test_every_k_has_a_row_and_no_speculation_is_the_measure() -> None:
    told = rows(Sweep(calm=1.0, noise=0.0).blocks(4))
    assert sorted(told) == list(range(9))
    assert told[0]["speedup"] == 1.0 and told[0]["half_width"] == pytest.approx(0, abs=1e-3)
    for tokens in GAINS:
        assert told[tokens]["speedup"] == pytest.approx(Sweep().speedup(tokens), rel=1e-3)
        assert told[tokens]["speedup_as_measured"] == pytest.approx(told[tokens]["speedup"], rel=1e-3)
        assert told[tokens]["half_width"] == pytest.approx(0, abs=1e-3)
        assert told[tokens]["blocks"] == 4


def test_the_half_width_covers_the_truth_in_about_95_of_100_sweeps() -> None:
    held = wide = 0
    for seed in range(25):
        machine = Sweep(calm=0.3)
        told = rows(machine.blocks(10, seed=seed))
        for tokens in (1, 5):
            miss = abs(math.log(told[tokens]["speedup"] / machine.speedup(tokens)))
            held += miss <= math.hypot(told[tokens]["half_width"], told[0]["half_width"]) + 0.01
            wide += 1
    assert held / wide > 0.88


def test_more_blocks_make_it_narrower() -> None:
    narrow, wide = (
        sum(rows(Sweep().blocks(count, seed=seed))[4]["half_width"] for seed in range(4)) for count in (40, 6)
    )
    assert narrow < wide / 2


def test_what_prefills_take_is_one_figure_for_all_and_decides_between_none() -> None:
    told = rows(Sweep(prefill_s=2.0, noise=0.2).blocks(8))
    assert all(row["half_width"] < row["half_width_with_prefills"] for row in told.values())


def test_one_block_says_nothing_of_its_width() -> None:
    assert rows(Sweep().blocks(1))[4]["half_width"] == 9.0


def test_over_all_workloads_a_speedup_is_their_geometric_mean() -> None:
    loads = [Sweep(workload=name, prefill_s=held_s) for name, held_s in (("code", 0.0), ("json", 2.0))]
    found = [done for machine in loads for done in machine.blocks(8)]
    told = [rows(found, (name, 0.0, 1))[4]["speedup"] for name in ("code", "json")]
    assert told[0] > told[1]
    assert rows(found, OVER_ALL)[4]["speedup"] == pytest.approx(math.sqrt(told[0] * told[1]), rel=1e-3)


def test_short_prompts_time_steps_and_are_no_workload() -> None:
    few = Sweep(calm=0.0).blocks(2)
    found = [*few, *(done for done in STEPS.blocks(20))]
    assert {at[0] for at in sweepdata.told(found)} == {"code", sweepdata.ALL}
    assert abs(rows(found)[4]["speedup"] - Sweep().speedup(4)) < 0.05 * Sweep().speedup(4)


def test_a_workload_gets_one_block_and_the_steps_of_the_best_k_as_many_as_it_takes() -> None:
    rng = random.Random(3)
    found: list[Pass] = []
    asked: dict[str, list[frozenset[str]]] = {"code": [], sweepdata.STEPS: []}
    for number in range(0, 80, 2):
        for place, machine in enumerate((Sweep(calm=0.5), replace(STEPS, calm=0.5))):
            block = Block(number + place, machine.point(number // 2 % GROUPS), (), 0)
            arms = frozenset(sweep_demo.still(TOGETHER, block, found))
            asked[machine.workload].append(arms)
            found += machine.block(number + place, arms, rng=rng)
    assert asked["code"][0] == EVERY
    assert not any(asked["code"][1:])
    steps = asked[sweepdata.STEPS]
    assert steps[0] == EVERY and steps[-1] == frozenset()
    assert all(BASELINE in arms for arms in steps if arms)
    counts = {arm: sum(arm in arms for arms in steps) for arm in EVERY}
    assert counts["k1"] < counts["k4"] == counts[BASELINE]
    told = rows(found, OVER_ALL)
    assert told[4]["half_width"] <= sweepdata.WIDEST
    table = "\n".join(sweepdata.table(sweepdata.data(found, {})))
    assert "all workloads, 1 at once" in table and "* K = 4" in table and "K = 1" in table


def test_a_session_asks_for_its_own_k_and_for_none_of_another() -> None:
    first, second = Session(0, (BASELINE, "k3", "k4")), Session(1, (BASELINE, "k5", "k6"))
    found = [done for done in Sweep().blocks(1) if done.arm in (BASELINE, "k3")]
    for session, wanted in ((second, {BASELINE, "k5", "k6"}), (first, {BASELINE, "k4"})):
        asked = sweep_demo.still(session, Block(5, Sweep().point(0), (), 0), found)
        assert set(asked) == wanted


def test_steps_alone_are_timed_once_every_workload_is_there() -> None:
    points = [machine.point(0) for machine in (Sweep(), Sweep(load=4), STEPS)]
    block = Block(50, STEPS.point(0), (), 0)

    def asked(found: list[Pass]) -> set[str]:
        return set(sweep_demo.still(TOGETHER, block, found, points=points))

    half = Sweep().blocks(1)
    assert asked([]) == asked(half) == set()
    assert asked([*half, *Sweep(load=4).blocks(1)]) == EVERY


def test_a_block_that_is_there_is_not_measured_again() -> None:
    found = Sweep().blocks(1)
    assert not sweep_demo.still(TOGETHER, Block(0, Sweep().point(0), (), 0), found)


def test_a_tune_is_compared_with_the_best_of_each_point() -> None:
    machine = Sweep(calm=1.0, noise=0.0)
    sweep = sweepdata.data(machine.blocks(4), {})
    rate = next(row for row in sweep["points"] if row["workload"] == "code")["output_tokens_per_s"]
    said = [
        {
            "workload": "code",
            "concurrency": 1,
            "num_speculative_tokens": tokens,
            "predicted": {
                "speedup": {"value": machine.speedup(tokens) * 1.05},
                "output_tokens_per_s": machine.speedup(tokens) * rate * 1.08,
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
    assert "all workloads, 1 at once: chose K = 5" in told
    assert "best K = 4, 2.000x (tokens/s ± 0.0%): 2.5% less" in told
    assert "predicted best K = 4" in told
    assert "best by prediction: 0.0% below the best in the median, 0.0% at most" in told
    assert "speedup predicted against measured: 5.0% off in the median of 8" in told
    assert "tokens/s predicted against measured: 8.0% off in the median of 8" in told
    assert "3 launches instead of 9" in told


def test_a_tune_of_the_written_files_chooses_by_the_prompts_of_the_sweep(tmp_path: Path) -> None:
    sweep_demo.write_prompts(tmp_path / "files")
    asked = Namespace(
        profile=sweep_demo.PROFILE, workloads="code,json,chat", loads="4", max_tokens=sweep_demo.MAX_TOKENS
    )
    groups = dict(sweep_demo._groups(asked, tmp_path / "groups"))
    for workload in sweep_demo.WORKLOADS:
        _, swept = groups[sweepdata.group_name(workload, 4, 0)]
        every = load(
            str(tmp_path / "files" / f"{workload}.jsonl"), chat=True, max_model_len=1024, max_tokens=48
        )
        chosen, others = split(every.prompts, sweep_demo.PROMPTS)
        assert [(each.id, each.text, each.max_tokens) for each in chosen] == [
            (line["id"], line["prompt"], line["max_tokens"])
            for line in map(json.loads, swept.read_text().splitlines())
        ]
        assert others and all(each.messages is None for each in every.prompts)
