"""What `specserve logs` prints of a log, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.report.servers import print_log
from specserve.serve import logs
from specserve.serve.logs import LogTail


def print_last(log: Path, *, lines: int) -> LogTail:
    tail = LogTail(log)
    print_log(tail.last(lines))
    return tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "demo.log"


def test_the_last_lines_are_printed_and_a_half_one_waits(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("one\ntwo\nthree\nfo")
    tail = print_last(log, lines=2)
    assert capsys.readouterr().out == "two\nthree\n"
    log.write_text("one\ntwo\nthree\nfour\n")
    assert tail.read_raw() == [b"four"]


def test_a_line_without_an_end_is_shown_in_pieces(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LONGEST_LINE", 10)
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 16)
    log.write_text("x" * 1000 + "\nlast\n")
    print_last(log, lines=2)
    *pieces, last = capsys.readouterr().out.splitlines()
    assert last == "last"
    assert 0 < sum(map(len, pieces)) <= 32  # no more of it was read than two lines may hold


def test_a_piece_that_begins_with_an_end_of_line_hides_no_line(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LONGEST_LINE", 3)
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 4)
    log.write_text("11\n22\n33\n")
    print_last(log, lines=2)
    assert capsys.readouterr().out == "22\n33\n"


def test_in_a_job_of_github_a_log_gives_no_orders(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("::error::boo\n  ::set-output name=a::b\nx ##[group]y\nC::D\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    print_last(log, lines=0)
    told = capsys.readouterr().out.splitlines()
    assert told == [r"\:error::boo", r"  \:set-output name=a::b", r"x \#[group]y", "C::D"]
    monkeypatch.delenv("GITHUB_ACTIONS")
    print_last(log, lines=1)
    print_last(log, lines=0)
    assert "::error::boo" in capsys.readouterr().out
