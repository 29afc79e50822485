"""A run directory, for its owner alone and resumable whatever ended it, and the result in it."""

import dataclasses
import json
import math
import stat
from pathlib import Path
from typing import Any

import pytest
from bench_result import example

from specserve.errors import FactError, UsageError
from specserve.measure.bench.passes import PASSES, create, read_passes, resume
from specserve.measure.bench.result import Result, from_json, read_result
from specserve.measure.verdict import Estimate
from specserve.metrics import Acceptance
from specserve.report.bench import rendered
from tests.measure.bench.making import made, request


def test_what_was_written_is_read_back_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    first = made("a", 0, request(), request("p2"), acceptance=Acceptance(3, 12, 5, (3, 2, 0, 0)))
    second = made("baseline", 0, request(), request("p2", error="boom"))
    with create(tmp_path / "run", {"name": "x"}) as run:
        run.append(made("a", 0, request(tokens=9)))
        run.append(first)  # measured again: it takes the place of the first
        run.append(second)
        run.write("result.json", "{}")
        assert read_passes(run.path) == [first, second]
    with resume(tmp_path / "run") as again:
        assert read_passes(again.path) == [first, second]
        assert again.content["name"] == "x"
    files = [file for file in (tmp_path / "run").iterdir() if file.is_file()]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run", *files)}
    assert modes == {0o700, 0o600}


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


def test_a_run_that_is_written_and_a_directory_that_is_there_are_left_alone(tmp_path: Path) -> None:
    with create(tmp_path / "run", {}):
        with pytest.raises(UsageError, match="another `specserve bench` or `tune` is writing"):
            resume(tmp_path / "run")
        with pytest.raises(UsageError, match="exists already") as caught:
            create(tmp_path / "run", {})
    assert "--resume" in str(caught.value.hint)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists already") as caught:
        create(tmp_path / "mine", {})
    assert caught.value.hint == "use another `-o` to start a new run"  # there is no run to go on with


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


def test_a_result_is_the_same_after_a_file_and_a_bound_that_is_missing_is_null(tmp_path: Path) -> None:
    first, *others = example().comparisons
    open_one = dataclasses.replace(first, speedup=Estimate(2.0, 1.5, math.inf, 8, "ranks"))
    found = dataclasses.replace(example(), comparisons=(open_one, *others))
    text = rendered(found, form="json")
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    assert json.loads(text)["comparisons"][0]["speedup"]["high"] is None
    assert read_result(tmp_path) == read_result(tmp_path / "result.json") == found


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
    inner = tree = json.loads(rendered(example(), form="json"))
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=place):
        from_json(Result, json.dumps(tree))


@pytest.mark.parametrize("text", [None, "", "[]", "[" * 100_000, '{"version": 1}', "\xff"])
def test_a_file_that_holds_no_result_is_an_error_with_its_name(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "result.json").write_bytes(text.encode("latin-1"))
    about = "No such file" if text is None else r"result.json` is not a benchmark result"
    with pytest.raises(FactError, match=about) as raised:
        read_result(tmp_path)
    assert text is not None or raised.value.hint == "a run is the directory that `bench` prints at its end"
