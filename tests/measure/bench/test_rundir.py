"""A run directory: for its owner alone, complete or resumable whatever ended it."""

import stat
from pathlib import Path

import pytest

from specserve.errors import FactError, UsageError
from specserve.measure.bench.rundir import PASSES, create, read_passes, resume
from specserve.metrics.counters import Acceptance
from tests.measure.bench.making import made, request


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
