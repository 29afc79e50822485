"""The same two findings in every format, each as its readers see it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.diagnostics import Finding, ProfileVerdict, Report, Severity, Skipped, Span
from specserve.errors import FactError, Interrupted, LaunchError, ProfileError, SpecserveError, UsageError
from specserve.report.findings import concise, failure, render, summary
from specserve.report.formats import github, report_json, sarif

Golden = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (lambda report: render(report.findings, stream=io.StringIO()), "findings.txt"),
        (lambda report: concise(report.findings), "findings-concise.txt"),
        (lambda report: report_json(report) + "\n", "findings.json"),  # of which the reference is made
        (lambda report: github(report.findings), "findings-github.txt"),
    ],
)
def test_two_findings_in_each_format(
    form: Callable[[Report], str], name: str, two: Report, golden: Golden
) -> None:
    golden(f"report/{name}", form(two))


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


BAD = Finding("SD005", "unknown-key", Severity.ERROR, "unknown key `x`", Span("no.yaml", 2, 3, 2, 4))
SHOWN = "error[SD005]: unknown key `x`\n --> no.yaml:2:3\n\nerror: bad"


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (UsageError("no such thing", hint="try that"), "error: no such thing\n\nhint: try that", 2),
        (
            FactError("gone", causes=("disk", "power")),
            "error: gone\n  Caused by: disk\n  Caused by: power",
            2,
        ),
        (ProfileError("bad", findings=(BAD,)), SHOWN, 2),
        (ProfileError("bad", findings=(BAD,), exit_code=1), SHOWN, 1),
        (
            LaunchError("died", causes=("OOM",), log_tail=("a", "b"), log_path="/l", hint="h"),
            "error: died\n  Caused by: OOM\n\n  the log ends with\n    | a\n    | b\n\n  full log: /l\n\nhint: h",
            2,
        ),
        (Interrupted("stopped", exit_code=143), "error: stopped", 143),
    ],
)
def test_each_error_says_what_and_why_and_the_way_out(error: SpecserveError, text: str, code: int) -> None:
    assert (failure(error), error.exit_code) == (text, code)
