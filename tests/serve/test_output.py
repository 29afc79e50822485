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


def opened(path: Path, *, origin: str = "o") -> Output:
    return Output(path, origin=origin)


def write(path: Path, order: Sequence[int]) -> None:
    output = opened(path)
    for index in order:
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(st.permutations(range(4)), st.integers(0, 4))
def test_lines_that_finish_in_any_order_end_in_the_order_of_the_input(
    tmp_path: Path, order: list[int], count: int
) -> None:
    path = tmp_path / "out.jsonl"
    path.unlink(missing_ok=True)
    write(path, order[:count])
    assert not path.exists()
    output = opened(path)
    output.close()
    assert output.done == set(order[:count])
    assert finish(path) == WHOLE
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_failed_line_counts_as_finished_and_is_listed(tmp_path: Path) -> None:
    output = opened(tmp_path / "out.jsonl")
    output.write({"id": "r2", "index": 2, "error": "line 3: too long"})
    output.close()
    output = opened(tmp_path / "out.jsonl")
    assert output.done == {2}
    assert output.complete() == ("line 3: too long",)
    output.close()


def test_an_output_line_is_ascii_so_that_no_reader_splits_it_and_no_terminal_obeys_it(tmp_path: Path) -> None:
    output = opened(tmp_path / "out.jsonl")
    output.write({"id": "é", "index": 0, "text": "\u2028\x1b[2J\x85"})
    output.complete()
    output.close()
    raw = (tmp_path / "out.jsonl").read_bytes()
    assert raw.isascii() and b"\x1b" not in raw and len(raw.decode().splitlines()) == 1


def test_a_full_disk_is_an_error_that_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    code = (
        "import resource, signal; from pathlib import Path; from specserve.serve.batch import Output\n"
        "from specserve.errors import FactError\n"
        f"o = Output(Path({str(path)!r}), origin='o')\n"
        "for index in range(2): o.write({'id': f'r{index}', 'index': index, 'text': 't'})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (o.partial.stat().st_size,) * 2)\n"
        "try: o.write({'id': 'r2', 'index': 2, 'text': 't' * 9999})\n"
        "except FactError as error: print(len(o.done), error, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2 cannot write")
    assert "the same command resumes" in done.stdout
    output = opened(path)
    output.close()
    assert output.done == {0, 1}
    assert finish(path) == WHOLE


def test_other_work_is_not_mixed_in(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl", [0, 1])
    with pytest.raises(UsageError, match="another input, profile or other options") as error:
        opened(tmp_path / "out.jsonl", origin="other")
    assert "delete it to start over" in str(error.value.hint)
    output = opened(tmp_path / "out.jsonl")
    output.close()
    assert output.done == {0, 1}


def test_a_file_that_is_no_database_is_neither_resumed_nor_dropped(tmp_path: Path) -> None:
    partial = tmp_path / "out.jsonl.partial"
    partial.write_bytes(b"precious " * 100)
    with pytest.raises(FactError, match="cannot write"):
        opened(tmp_path / "out.jsonl")
    assert partial.read_bytes() == b"precious " * 100


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    output = opened(path)
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        output.complete()
    output.close()
    assert path.read_text() == "precious"
    path.unlink()
    assert finish(path) == WHOLE


def test_two_runs_do_not_write_the_same_output(tmp_path: Path) -> None:
    for _ in ("new", "resumed"):
        output = opened(tmp_path / "out.jsonl")
        with pytest.raises(UsageError, match="another `generate` is writing"):
            opened(tmp_path / "out.jsonl")
        output.close()


def test_a_folder_that_is_not_there_promises_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="cannot write") as caught:
        opened(tmp_path / "none" / "out.jsonl")
    assert caught.value.hint == "`-o` needs a folder that can be written to"


def test_what_is_not_the_name_of_a_file_is_a_usage_error() -> None:
    for name in ("", "/", "."):
        with pytest.raises(UsageError, match="is not the name of a file"):
            opened(Path(name))


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from specserve.serve.batch import Output\n"
        f"o = Output(Path({str(tmp_path / 'out.jsonl')!r}), origin='o')\n"
        "o.write({'id': 'r0', 'index': 0}); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    output = opened(tmp_path / "out.jsonl")
    output.close()
    assert output.done == {0}


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FactError, match="cannot write"):
        opened(tmp_path / "nowhere" / "out.jsonl")
