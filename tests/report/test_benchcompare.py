"""Two runs side by side, in all forms."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.measure.bench.result import Interval
from specserve.report.benchcompare import RunComparison, compare, compared

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from bench_result import example

EVIL = "<script>x</script> | `a` @team #12 \x1b[2J"


def changed(extra: str = "") -> RunComparison:
    """The example a day later, with another vLLM, one arm faster, and other prompts of one workload."""
    old = example()
    comparisons = tuple(
        dataclasses.replace(item, speedup=larger(item.speedup))
        if item.arm == "eagle3" and item.speedup
        else item
        for item in old.comparisons
    )
    first, second = old.workloads
    new = dataclasses.replace(
        old,
        name=old.name + extra,
        created="2026-11-22T12:00:00Z",
        comparisons=comparisons,
        versions={**old.versions, "vllm": f"0.34.0{extra}"},
        workloads=(first, dataclasses.replace(second, sha256="0" * 64)),
    )
    return compare(old, new)


def larger(speedup: Interval) -> Interval:
    return Interval(speedup.value * 1.2, speedup.low * 1.2, speedup.high * 1.2)


def plain(comparison: RunComparison, form: str) -> str:
    return compared(comparison, form=form, stream=io.StringIO())


@pytest.mark.parametrize(("form", "ending"), [("text", "txt"), ("markdown", "md"), ("json", "json")])
def test_the_example_in_all_forms(golden: Callable[[str, str], None], form: str, ending: str) -> None:
    golden(f"report/bench-compare.{ending}", plain(changed(), form))


def test_text_has_80_columns() -> None:
    assert max(map(len, plain(changed(), "text").splitlines())) <= 80


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_runs_that_cannot_be_compared_say_why(form: str) -> None:
    old = example()
    arms = tuple(dataclasses.replace(arm, model="org/other") for arm in old.arms)
    shown = plain(compare(old, dataclasses.replace(old, arms=arms)), form)
    assert re.search("not comparable(: |  )the targets differ", shown)
    assert "o speedup can be compared" in shown


def test_json_begins_with_its_version_and_says_the_direction() -> None:
    text = plain(changed(), "json")
    assert text.startswith('{\n  "version": 1,')
    points = json.loads(text)["points"]
    assert {point["direction"] for point in points} == {None, "no change seen", "rose"}
    assert {point["refused"] for point in points} == {None, "the prompts or their max_tokens differ"}


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_names_stay_names(form: str) -> None:
    shown = plain(changed(EVIL), form)
    assert "\x1b" not in shown
    if form == "markdown":
        prose = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", shown)
        assert not re.search(r"<script|@team|(?<!&)#12", prose)
