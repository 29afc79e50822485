"""A result survives its file; what is not a result is refused with its place."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.measure.bench.result import Result, from_json, read_result
from specserve.measure.intervals import Estimate
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


def test_what_has_no_upper_bound_is_null_in_the_file_and_has_none_after_it() -> None:
    first, *others = example().comparisons
    open_one = dataclasses.replace(first, speedup=Estimate(2.0, 1.5, math.inf, 8, "ranks"))
    found = dataclasses.replace(example(), comparisons=(open_one, *others))
    text = rendered(found, form="json")
    assert json.loads(text)["comparisons"][0]["speedup"]["high"] is None
    assert from_json(Result, text) == found


def test_keys_of_a_later_version_are_passed_over_and_those_with_a_default_may_be_missing() -> None:
    tree = {**content(), "later": 1}
    del tree["notes"], tree["stops_paying"]
    read = from_json(Result, json.dumps(tree))
    assert read == dataclasses.replace(example(), notes=(), stops_paying={})


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["name"], 7, "`name`"),
        (["cells", 1, "figures", "requests"], "many", "`cells.1.figures.requests`"),
        (["comparisons", 0, "verdict", "level"], "WINS", "`comparisons.0.verdict.level`"),
        (["comparisons", 0, "speedup"], [], "`comparisons.0.speedup`"),
        (["host", "cores"], None, "`host.cores`"),
        (["name"], "\ud800", "Invalid JSON"),
    ],
)
def test_what_is_no_result_is_refused_with_its_place(path: list[str | int], value: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        from_json(Result, json.dumps(at(content(), path, value)))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"version": 1}', "\xff"])
def test_a_file_that_holds_no_result_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(FactError, match=r"result.json` is not a benchmark result"):
        read_result(tmp_path)


def test_a_directory_without_a_result_says_what_a_run_is(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="No such file") as raised:
        read_result(tmp_path)
    assert raised.value.hint == "a run is the directory that `bench` prints at its end"


@settings(max_examples=40, deadline=None)
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
        assert isinstance(from_json(Result, json.dumps(at(tree, path, data.draw(JSON)))), Result)
    except ValueError as error:
        assert str(error)
