"""A result survives its file; what is not a result is refused with its place."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.measure.bench.result import (
    Result,
    Verdict,
    read_result,
    result_from_json,
)
from specserve.report.bench import rendered

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from bench_result import example

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def content() -> Any:
    return json.loads(rendered(example(), form="json"))


def at(tree: Any, path: list[str | int], value: Any) -> Any:
    """The tree with one value replaced."""
    inner: Any = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


def test_a_result_is_the_same_after_a_file(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(rendered(example(), form="json"), encoding="utf-8")
    assert read_result(tmp_path) == read_result(tmp_path / "result.json") == example()


def test_the_file_begins_with_its_version_and_names_verdicts() -> None:
    assert rendered(example(), form="json").startswith('{\n  "version": 1,\n')
    assert content()["comparisons"][0]["verdict"] == Verdict.PAYS.value


def test_what_is_not_finite_is_null_in_the_file_and_no_number_after_it() -> None:
    read = result_from_json(
        json.loads(rendered(dataclasses.replace(example(), duration_s=float("inf")), form="json"))
    )
    assert read.duration_s != read.duration_s


def test_keys_of_a_later_version_are_passed_over_and_those_with_a_default_may_be_missing() -> None:
    tree = {**content(), "later": 1}
    del tree["promises"], tree["stops_paying"]
    read = result_from_json(tree)
    assert read == dataclasses.replace(example(), promises=(), stops_paying={})


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (["version"], 2, "its format version is 2, but this specserve reads 1"),
        (["name"], 7, "`name` must be text"),
        (["launches"], 1.5, "`launches` must be a whole number"),
        (["launches"], True, "`launches` must be a whole number"),
        (["cells", 1, "figures", "requests"], "many", r"`cells\[1\].figures.requests` must be a whole number"),
        (["cells", 0, "figures", "output_tokens_per_s"], 10**400, "must be a finite number"),
        (["comparisons", 0, "verdict"], "WINS", r"must be one of PAYS, COSTS, NO DIFFERENCE, INCONCLUSIVE"),
        (["comparisons", 0, "speedup"], [], r"`comparisons\[0\].speedup` must be an object"),
        (["arms"], {}, "`arms` must be a list"),
        (["versions"], [], "`versions` must be an object"),
        (["host", "cpu"], None, "`host.cpu` must be text"),
        (["name"], "\ud800", "unpaired surrogate"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_refused_with_its_place(path: list[str | int], value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        result_from_json(at(content(), path, value))


def test_what_is_missing_is_named() -> None:
    tree = content()
    del tree["cells"][3]["point"]["workload"]
    with pytest.raises(ValueError, match=r"`cells\[3\].point.workload` is missing"):
        result_from_json(tree)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"version": 1}', "\xff"])
def test_a_file_that_holds_no_result_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(FactError, match=r"result.json` is not (JSON|a benchmark result)"):
        read_result(tmp_path)


def test_a_directory_without_a_result_says_what_a_run_is(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="No such file") as raised:
        read_result(tmp_path)
    assert raised.value.hint == "a run is the directory that `bench` prints at its end"


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_gives_a_result_or_a_reason(data: st.DataObject) -> None:
    tree = content()
    path: list[str | int] = []
    inner: Any = tree
    while isinstance(inner, dict | list) and inner and (not path or data.draw(st.integers(0, 4))):
        keys: list[Any] = sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))
        step: Any = data.draw(st.sampled_from(keys))
        path.append(step)
        inner = inner[step]
    try:
        assert isinstance(result_from_json(at(tree, path, data.draw(JSON))), Result)
    except ValueError as error:
        assert str(error)
