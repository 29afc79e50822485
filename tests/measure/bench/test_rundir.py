"""A run directory, for its owner alone and resumable whatever ended it, and the result in it."""

import dataclasses
import json
import math
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_result import example
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError, UsageError
from specserve.measure.bench.passes import PASSES, create, read_passes, resume
from specserve.measure.bench.result import Result, from_json, read_result
from specserve.measure.intervals import Estimate
from specserve.metrics import Acceptance
from specserve.report.bench import rendered
from tests.measure.bench.making import made, request

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    first = made("a", 0, request(), request("p2"), acceptance=Acceptance(3, 12, 5, (3, 2, 0, 0)))
    second = made("baseline", 0, request(), request("p2", error="boom"))
    with create(tmp_path / "run", {"name": "x"}) as run:
        run.append(first)
        run.append(second)
        assert read_passes(run.path) == [first, second]
    with resume(tmp_path / "run") as again:
        assert read_passes(again.path) == [first, second]
        assert again.content["name"] == "x"


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    with create(tmp_path / "run", {}) as run:
        run.append(made("a", 0))
        run.write("result.json", "{}")
    assert mode(tmp_path / "run") == 0o700
    assert {mode(file) for file in (tmp_path / "run").iterdir() if file.is_file()} == {0o600}


def test_a_pass_that_was_cut_off_is_not_there(tmp_path: Path) -> None:
    kept = made("a", 0)
    with create(tmp_path / "run", {}) as run:
        run.append(kept)
        run.append(made("a", 1))
    file = tmp_path / "run" / PASSES
    file.write_bytes(file.read_bytes()[:-20])
    with resume(tmp_path / "run") as run:
        assert read_passes(run.path) == [kept]
        run.append(made("a", 1))
        run.append(made("a", 2))
        assert [each.block for each in read_passes(run.path)] == [0, 1, 2]


def test_a_pass_that_is_measured_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with create(tmp_path / "run", {}) as run:
        run.append(made("a", 0, request(tokens=5)))
        again = made("a", 0, request(tokens=9))
        run.append(again)
        assert read_passes(run.path) == [again]


def test_two_runs_do_not_write_one_directory(tmp_path: Path) -> None:
    with (
        create(tmp_path / "run", {}),
        pytest.raises(UsageError, match="another `specserve bench` or `tune` is writing"),
    ):
        resume(tmp_path / "run")


def test_a_directory_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already") as caught:
        create(tmp_path / "run", {})
    assert (
        caught.value.hint == "use another `-o` to start a new run"
    )  # it is not a run, so nothing can go on with it
    with create(tmp_path / "other", {}), pytest.raises(UsageError) as caught:
        create(tmp_path / "other", {})
    assert "--resume" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"), [("not json", "cannot be read"), ("[]", "cannot be read"), (None, "is not a run of")]
)
def test_what_is_no_run_is_not_resumed(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        resume(tmp_path)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    with create(tmp_path / "run", {}):
        pass
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "run" / PASSES).unlink()
    (tmp_path / "run" / PASSES).symlink_to(tmp_path / "victim")
    with pytest.raises(FactError, match="cannot write"):
        resume(tmp_path / "run")
    assert (tmp_path / "victim").read_text() == "mine"


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
