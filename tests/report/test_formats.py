"""The same three findings in every format, each as its readers see it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.diagnostics import Finding, ProfileVerdict, Report, Severity, Skipped, Span
from specserve.report.findings import concise, render, summary
from specserve.report.formats import github, report_json, sarif

Golden = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (lambda report: render(report.findings, stream=io.StringIO()), "three.txt"),
        (lambda report: concise(report.findings), "three-concise.txt"),
        (lambda report: report_json(report) + "\n", "three.json"),  # of which the reference is made
        (lambda report: github(report.findings), "three-github.txt"),
    ],
)
def test_three_findings_in_each_format(
    form: Callable[[Report], str], name: str, three: Report, golden: Golden
) -> None:
    golden(f"report/{name}", form(three))


def test_what_did_not_run_is_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its paths begin at the repository
    skipped = (Skipped("a.yaml", "models", "no network", "unreachable", "go online"),)
    assert concise([], skipped=skipped) == "a.yaml:1:1: skipped[models] no network\n"
    said = "a.yaml: not fully checked (models): no network"
    assert github([], skipped=skipped) == f"::warning title=specserve (models),file=a.yaml::{said}\n"
    (run,) = json.loads(sarif(Report(skipped=skipped)))["runs"]
    assert [note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]] == [said]
    (item,) = json.loads(report_json(Report(skipped=skipped)))["skipped"]
    assert (item["reason"], item["help"]) == ("no network", "go online")


ERROR = Finding("SD104", "split-draft", Severity.ERROR, "draft is split", Span("a.yaml", 1, 1, 1, 2))
PASSED, BROKEN = ProfileVerdict("a.yaml", "a", "0", "ok"), ProfileVerdict("b.yaml", None, None, "invalid")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (Report(verdicts=(PASSED, PASSED)), "All checks passed: 2 profiles"),
        (Report(verdicts=(PASSED,), suppressed=2), "All checks passed: 1 profile, 2 ignored"),
        (
            Report((ERROR._replace(severity=Severity.INFO),), verdicts=(PASSED,)),
            "All checks passed: 1 profile, 1 info",
        ),
        (
            Report((ERROR, ERROR, ERROR._replace(severity=Severity.WARNING)), verdicts=(PASSED, PASSED)),
            "Found 2 errors, 1 warning in 2 profiles",
        ),
        (
            Report((ERROR._replace(code="SD002"),), verdicts=(BROKEN,)),
            "Found 1 error in 1 profile, some rules not run because a file is invalid",
        ),
    ],
)
def test_the_last_line_counts_in_words(report: Report, text: str) -> None:
    assert summary(report) == text


def test_both_sides_of_a_mismatch_are_in_every_format_that_shows_places(three: Report) -> None:
    (split,) = [finding for finding in three.findings if finding.code == "SD104"]
    report = Report((split,))
    for text in (render([split], stream=io.StringIO()), report_json(report), github([split]), sarif(report)):
        assert "draft asks for 2" in text
        assert "target runs on 4" in text
        assert "_base.yaml" in text
