"""Findings as text: marks under the right characters, whatever the line holds, and no secret in it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.diagnostics import Finding, Related, Severity, Span
from specserve.profile import source
from specserve.report.findings import render
from specserve.report.text import Column, Table
from tests.report.conftest import Terminal

Write = Callable[..., Path]


def finding(file: Path, line: int, start: int, end: int, **more: Any) -> Finding:
    span = Span(str(file), line, start, line, end)
    base = Finding("SD104", "split-draft", Severity.ERROR, "draft is split", span)
    return base._replace(**more)


def plain(*findings: Finding) -> str:
    return render(findings, stream=io.StringIO())


def test_a_mark_stands_under_the_value_behind_a_tab(write: Write) -> None:
    file = write('a: 1\nb:\t"x y" # z\nc: 3')
    assert plain(finding(file, 2, 4, 9)).splitlines()[3:5] == ['2 | b: "x y" # z', "  |    ^^^^^"]


def test_two_places_in_one_line_show_the_line_once(write: Write) -> None:
    file = write("target: {a: 4, b: 1}")
    related = (Related(Span(str(file), 1, 13, 1, 14), "here 4"),)
    text = plain(finding(file, 1, 19, 20, label="there 1", related=related))
    assert text.splitlines()[2:] == [
        "  |",
        "1 | target: {a: 4, b: 1}",
        "  |                   ^ there 1",
        "  |             - here 4",
    ]


def test_of_a_long_line_the_part_with_the_mark_is_shown(write: Write) -> None:
    file = write(f"engine: {{{'a' * 300}: 1, wrong: 2, {'b' * 300}: 3}}")
    column = file.read_text().index("wrong") + 1
    text = plain(finding(file, 1, column, column + 5)).splitlines()
    assert len(text[3]) <= 110 and "wrong: 2" in text[3] and text[3].count("…") == 2
    assert text[3][text[4].index("^") :].startswith("wrong")
    assert text[4].count("^") == 5


def test_a_file_that_is_gone_has_no_lines(tmp_path: Path) -> None:
    file = tmp_path / "gone.yaml"
    assert plain(finding(file, 3, 1, 2, help="do")).splitlines() == [
        "error[SD104]: draft is split",
        f" --> {file}:3:1",
        "  = help: do",
    ]


def test_lines_of_what_has_no_file_are_those_that_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_KEPT", {})
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a: 1\r\nb: x\n")))
    assert source.read("-") == b"a: 1\r\nb: x\n"
    assert plain(finding(Path("-"), 2, 4, 5)).splitlines()[3:] == ["2 | b: x", "  |    ^"]


@pytest.mark.parametrize(
    "line", ["  max_num_batched_tokens: 131072", '"max_tokens": 4096000, b', "tokens=128_000"]
)
def test_a_number_of_tokens_is_no_secret(write: Write, line: str) -> None:
    assert line.strip() in plain(finding(write(f"x:\n{line}"), 2, 1, 2))


def test_colours_are_for_terminals_that_want_them(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    bad = finding(write("a: 1"), 1, 4, 5, help="do")
    assert "\x1b[31merror[SD104]\x1b[0m" in render([bad], stream=Terminal())
    assert "\x1b" not in plain(bad)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in render([bad], stream=Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in render([bad], stream=Terminal())


def test_infos_come_last_in_brief_with_their_help_once(write: Write) -> None:
    file = write("a: 1\nb: 2")
    info = finding(file, 1, 1, 2, severity=Severity.INFO, code="SD113", help="pin it", notes=("why",))
    text = plain(info, finding(file, 2, 1, 2), info._replace(message="another"))
    assert text.splitlines() == [
        "error[SD104]: draft is split",
        f" --> {file}:2:1",
        "  |",
        "2 | b: 2",
        "  | ^",
        "",
        "info[SD113]: draft is split",
        f" --> {file}:1:1",
        "  = note: why",
        "  = help: pin it",
        "",
        "info[SD113]: another",
        f" --> {file}:1:1",
        "  = note: why",
    ]


def test_a_table_that_is_too_wide_is_a_list_of_its_rows() -> None:
    columns = [Column("load"), Column("variant", "name"), *(Column(name) for name in "abc")]
    rows = [("1", "x", "1" * 40, "-", "3" * 30), ("1", "y", "", "2", "4" * 30)]
    table = Table(columns, rows, keys=2)
    assert table.text() == ["  1, x", f"    a {'1' * 40}, c {'3' * 30}", "  1, y", f"    b 2, c {'4' * 30}"]
    narrow = Table(columns, [("1", "x", "1", "-", "3"), ("1", "y", "", "2", "4")], keys=2).text()
    assert narrow == ["  load  variant  a  b  c", "     1  x        1  -  3", "        y           2  4"]
