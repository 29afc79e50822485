"""An output that survives being interrupted anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.errors import FactError, UsageError
from specserve.serve.batch import Output

ORIGIN = {"engine": "e", "input": "i"}
HEAD = b'{"engine": "e", "input": "i"}\n'


def opened(path: Path, *, origin: dict[str, str] = ORIGIN) -> Output:
    return Output(path, origin=origin, lines=4)


def write(path: Path, *, count: int, order: Sequence[int] = range(4)) -> None:
    output = opened(path)
    for index in order[:count]:
        if index not in output.done:
            output.write({"id": f"r{index}", "index": index, "text": "t"})
    output.close()


def finish(path: Path) -> list[dict[str, object]]:
    """Write what is missing and complete the output; returns its records."""
    output = opened(path)
    for index in range(4):
        if index not in output.done:
            output.write({"id": f"r{index}", "index": index, "text": "t"})
    output.complete()
    output.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


WHOLE = [{"id": f"r{index}", "index": index, "text": "t"} for index in range(4)]


def test_the_file_appears_only_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    output = opened(path)
    output.write({"id": "r0", "index": 0, "text": "t"})
    assert not path.exists()
    assert output.partial.read_bytes() == HEAD + b'{"id": "r0", "index": 0, "text": "t"}\n'
    output.complete()
    output.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_every_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    output = opened(tmp_path / "out.jsonl")
    for count, index in enumerate((3, 1, 2), start=1):
        output.write({"id": f"r{index}", "index": index, "text": "t"})
        assert len(output.partial.read_bytes().splitlines()) - 1 == len(output.done) == count
    output.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.permutations(range(4)), st.integers(0, 4))
def test_lines_that_finish_in_any_order_end_in_the_order_of_the_input(
    tmp_path: Path, order: list[int], count: int
) -> None:
    path = tmp_path / "out.jsonl"
    path.unlink(missing_ok=True)
    write(path, count=count, order=order)
    output = opened(path)
    output.close()
    assert set(output.done) == set(order[:count])
    assert finish(path) == WHOLE
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.permutations(range(4)), st.data())
def test_a_journal_cut_at_any_byte_keeps_its_whole_lines(
    tmp_path: Path, order: list[int], data: st.DataObject
) -> None:
    path = tmp_path / "out.jsonl"
    path.unlink(missing_ok=True)
    write(path, count=4, order=order)
    partial = tmp_path / "out.jsonl.partial"
    whole = partial.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    partial.write_bytes(whole[:cut])
    output = opened(path)
    output.close()
    assert set(output.done) == set(order[: max(0, whole[:cut].count(b"\n") - 1)])
    assert partial.read_bytes() == b"".join(whole.splitlines(keepends=True)[: len(output.done) + 1])
    assert finish(path) == WHOLE


@pytest.mark.parametrize("rubbish", [b"\x00" * 40, b"[1]", b'{"index": 9}', b'{"index": true}', b"\xff"])
def test_a_damaged_record_is_made_again_and_what_follows_is_kept(tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "out.jsonl"
    write(path, count=4)
    partial = tmp_path / "out.jsonl.partial"
    lines = partial.read_bytes().splitlines(keepends=True)
    partial.write_bytes(lines[0] + lines[1] + rubbish + b"\n" + lines[3] + lines[4])
    output = opened(path)
    output.close()
    assert set(output.done) == {0, 2, 3}
    assert finish(path) == WHOLE


def test_a_failed_line_counts_as_finished(tmp_path: Path) -> None:
    output = opened(tmp_path / "out.jsonl")
    output.write({"id": "r2", "index": 2, "error": "line 3: too long"})
    output.close()
    output = opened(tmp_path / "out.jsonl")
    output.close()
    assert set(output.done) == {2}
    assert output.errors == {2: "line 3: too long"}


def test_a_full_disk_is_an_error_that_keeps_the_journal_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    code = (
        "import resource, signal; from pathlib import Path; from specserve.serve.batch import Output\n"
        "from specserve.errors import FactError\n"
        f"o = Output(Path({str(path)!r}), origin={ORIGIN!r}, lines=4)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (130, 130))\n"
        "try:\n"
        "    for index in range(4): o.write({'id': f'r{index}', 'index': index, 'text': 't'})\n"
        "except FactError as error: print(len(o.done), error, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2 cannot write")
    assert "the same command resumes" in done.stdout
    output = opened(path)
    output.close()
    assert set(output.done) == {0, 1}
    assert finish(path) == WHOLE


def test_another_input_is_not_mixed_in(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl", count=2)
    with pytest.raises(UsageError, match="was made from another input") as error:
        opened(tmp_path / "out.jsonl", origin={**ORIGIN, "input": "new"})
    assert "delete it to start over" in str(error.value.hint)


def test_another_profile_is_not_mixed_in(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl", count=2)
    with pytest.raises(UsageError, match="another profile or other options"):
        opened(tmp_path / "out.jsonl", origin={**ORIGIN, "engine": "other"})
    assert len((tmp_path / "out.jsonl.partial").read_bytes().splitlines()) == 3


def test_a_journal_with_another_beginning_is_neither_resumed_nor_dropped(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl", count=2)
    partial = tmp_path / "out.jsonl.partial"
    partial.write_bytes(partial.read_bytes().replace(HEAD, b"[1\n"))
    with pytest.raises(UsageError, match="another profile or other options"):
        opened(tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl.partial").read_bytes().splitlines()) == 3


def test_two_runs_do_not_write_the_same_output(tmp_path: Path) -> None:
    output = opened(tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="another `specserve generate` is writing"):
        opened(tmp_path / "out.jsonl")
    output.close()
    opened(tmp_path / "out.jsonl").close()


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from specserve.serve.batch import Output\n"
        f"o = Output(Path({str(tmp_path / 'out.jsonl')!r}), origin={ORIGIN!r}, lines=4)\n"
        "o.write({'id': 'r0', 'index': 0}); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    output = opened(tmp_path / "out.jsonl")
    output.close()
    assert set(output.done) == {0}


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FactError, match=r"cannot write .*No such file"):
        opened(tmp_path / "nowhere" / "out.jsonl")
