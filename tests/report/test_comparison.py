"""Two runs side by side: what may be compared, what changed, and what the intervals allow to say."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from specserve.measure.bench.result import Interval, Result
from specserve.report.benchcompare import PointChange, RunComparison, compare

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from bench_result import example


def scaled(result: Result, factor: float, *, arm: str = "profile") -> Result:
    """The result with one arm's rates and speedups times a factor."""
    cells = tuple(
        dataclasses.replace(
            cell,
            figures=dataclasses.replace(
                cell.figures, output_tokens_per_s=cell.figures.output_tokens_per_s * factor
            ),
        )
        if cell.arm == arm and cell.figures
        else cell
        for cell in result.cells
    )
    comparisons = tuple(
        dataclasses.replace(
            item,
            speedup=Interval(
                item.speedup.value * factor, item.speedup.low * factor, item.speedup.high * factor
            ),
        )
        if item.arm == arm and item.speedup
        else item
        for item in result.comparisons
    )
    return dataclasses.replace(result, cells=cells, comparisons=comparisons)


def of(comparison: RunComparison, arm: str, workload: str, load: int) -> PointChange:
    (found,) = [
        item
        for item in comparison.points
        if (item.arm, item.point.workload, item.point.concurrency) == (arm, workload, load)
    ]
    return found


def test_a_run_beside_itself_shows_no_change() -> None:
    found = compare(example(), example())
    assert (found.refused, found.changes) == (None, ())
    assert {item.tokens_per_s_ratio for item in found.points if not item.refused} == {1.0}
    assert {item.direction for item in found.points} == {None, "no change seen"}


def test_a_speedup_that_rose_beyond_both_intervals_is_told_as_one() -> None:
    found = of(compare(example(), scaled(example(), 1.2)), "profile", "chat", 1)
    assert found.tokens_per_s_ratio == pytest.approx(1.2)
    assert found.direction == "rose"
    assert found.speedup_ratio is not None and found.speedup_ratio.value == pytest.approx(1.2)
    back = of(compare(scaled(example(), 1.2), example()), "profile", "chat", 1)
    assert back.direction == "fell"


def test_the_errors_of_both_runs_add_up_as_squares() -> None:
    found = of(compare(example(), example()), "profile", "chat", 1).speedup_ratio
    assert found is not None  # each run has 0.96 to 1.04
    assert found.high == pytest.approx(1 + (0.04**2 + 0.04**2) ** 0.5, abs=0.002)
    assert found.low == pytest.approx(1 / found.high, rel=1e-9)


def test_a_change_within_the_intervals_is_none_that_is_seen() -> None:
    assert of(compare(example(), scaled(example(), 1.03)), "profile", "chat", 1).direction == "no change seen"


def test_other_prompts_are_not_compared() -> None:
    first, second = example().workloads
    other = dataclasses.replace(example(), workloads=(dataclasses.replace(first, sha256="0" * 64), second))
    found = compare(example(), other)
    assert of(found, "profile", "chat", 1).refused == "the prompts or their max_tokens differ"
    assert of(found, "profile", "creative", 1).refused is None
    assert [item.what for item in found.changes] == ["prompts of chat"]


def test_an_invalid_cell_is_not_compared() -> None:
    found = of(compare(example(), example()), "eagle3", "creative", 16)
    assert found.refused == "invalid in the old run: the load generator used 0.97 of its core"


def test_another_machine_leaves_the_speedups() -> None:
    other = dataclasses.replace(example(), host={**example().host, "accelerator": "4 x H200"})
    found = compare(example(), other)
    point = of(found, "profile", "chat", 1)
    assert point.tokens_per_s_ratio is None and point.speedup_ratio is not None
    assert any("machines differ" in note for note in found.notes)


def test_two_targets_are_refused() -> None:
    arms = tuple(dataclasses.replace(arm, model="org/other") for arm in example().arms)
    found = compare(example(), dataclasses.replace(example(), arms=arms))
    assert found.refused == "the targets differ: `meta-llama/Llama-3.1-70B-Instruct` and `org/other`"
    assert found.points == ()


def test_runs_without_a_common_point_are_refused() -> None:
    found = compare(example(), dataclasses.replace(example(), cells=()))
    assert found.refused == "no variant was measured at the same point in both runs"


def test_speedups_over_two_baselines_have_no_ratio() -> None:
    comparisons = tuple(dataclasses.replace(item, against="other") for item in example().comparisons)
    found = compare(example(), dataclasses.replace(example(), comparisons=comparisons))
    assert of(found, "profile", "chat", 1).speedup_ratio is None


def test_what_changed_in_versions_settings_and_arms_is_told() -> None:
    arms = list(example().arms)
    arms[1] = dataclasses.replace(arms[1], num_speculative_tokens=4, fingerprint="9" * 64)
    new = dataclasses.replace(
        example(),
        versions={**example().versions, "vllm": "0.34.0"},
        settings={"blocks": "8"},
        arms=tuple(arms[:2]),
        launches=3,
    )
    told = {item.what: (item.old, item.new) for item in compare(example(), new).changes}
    assert told == {
        "vllm": ("0.33.0", "0.34.0"),
        "blocks": ("6", "8"),
        "requests per block": ("25", "-"),
        "seed": ("0", "-"),
        "max_tokens": ("256", "-"),
        "launches of each variant": ("1", "3"),
        "profile: num_speculative_tokens": ("5", "4"),
        "profile: fingerprint": ("0123456789ab", "999999999999"),
        "variant eagle3": ("there", "-"),
    }


def test_figures_that_are_no_numbers_make_no_ratio() -> None:
    found = compare(scaled(example(), 0.0), scaled(example(), float("nan")))
    point = of(found, "profile", "chat", 1)
    assert point.speedup_ratio is None and point.direction is None
