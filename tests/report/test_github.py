"""Workflow commands: one line each, escaped as the runner unescapes them, at a place that GitHub takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from specserve.diagnostics import Finding, Severity, Span
from specserve.report.formats import github

AT = Span("child.yaml", 5, 31, 5, 32, "a.b")
FINDING = Finding("SD104", "split-draft", Severity.ERROR, "draft is split", AT)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def parsed(command: str) -> tuple[str, dict[str, str], str]:
    """What a runner reads out of one line."""
    match = re.fullmatch(r"::(\w+) ([^\n]*?)::([^\n\r]*)\n", command)
    assert match, command
    properties = dict(item.split("=", 1) for item in match[2].split(","))
    return match[1], {name: unquote(value) for name, value in properties.items()}, unquote(match[3])


def test_columns_are_left_out_where_a_finding_spans_lines() -> None:
    over = replace(FINDING, span=Span("child.yaml", 5, 31, 7, 4))
    _, properties, _ = parsed(github([over]))
    assert set(properties) == {"title", "file", "line", "endLine"}
    assert properties["endLine"] == "7"


@pytest.mark.parametrize("name", ["-", "--set server.port", "<command>"])
def test_what_is_no_file_has_no_place(name: str) -> None:
    _, properties, text = parsed(github([replace(FINDING, span=replace(AT, file=name))]))
    assert set(properties) == {"title"}
    assert text.startswith(f"{name}:5:31: ")


def test_a_file_is_seen_from_the_repository_wherever_the_step_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "serving" / "configs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "serving")
    for name in ("configs/a.yaml", "./configs/../configs/a.yaml", str(tmp_path / "serving/configs/a.yaml")):
        _, properties, _ = parsed(github([replace(FINDING, span=replace(AT, file=name))]))
        assert properties["file"] == "serving/configs/a.yaml"
