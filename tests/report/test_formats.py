"""The same three findings in every format, each as its readers see it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.run import lint
from specserve.diagnostics import Finding, ProfileVerdict, Report, Severity, Skipped, Span
from specserve.report.findings import concise, render, summary
from specserve.report.formats import github, report_json, sarif

Golden = Callable[[str, str], None]


def test_as_text(three: Report, golden: Golden) -> None:
    golden("report/three.txt", render(three.findings, stream=io.StringIO()))


def test_as_one_line_each(three: Report, golden: Golden) -> None:
    golden("report/three-concise.txt", concise(three.findings))


def test_as_json_of_which_the_reference_is_made(three: Report, golden: Golden) -> None:
    golden("report/three.json", report_json(three) + "\n")


def test_as_workflow_commands(three: Report, golden: Golden) -> None:
    golden("report/three-github.txt", github(three.findings))


def test_as_json(write: Callable[..., Path]) -> None:
    bad = """
        target: {model: a/b, tensor_parallel_size: 4}
        speculation: {method: mtp, num_speculative_tokens: 2, draft_tensor_parallel_size: 2}
        server: {host: 0.0.0.0}  # specserve: ignore[SD108]
        """
    files = [
        write("target: {model: a/b}", "good.yaml"),
        write("vllm: 3", "broken.yaml"),
        write(bad, "bad.yaml"),
    ]
    content = json.loads(report_json(lint(map(str, files))))
    assert next(iter(content)) == "version"
    assert [item["verdict"] for item in content["verdicts"]] == ["ok", "invalid", "errors"]
    assert content["suppressed"] == 1
    (split,) = [item for item in content["findings"] if item["code"] == "SD104"]
    assert split["span"]["path"] == "speculation.draft_tensor_parallel_size"
    assert split["related"][0]["label"] == "target runs on 4"


def test_what_did_not_run_is_in_every_format() -> None:
    skipped = (Skipped("a.yaml", "models", "no network", "unreachable", "go online"),)
    assert concise([], skipped=skipped) == "a.yaml:1:1: skipped[models] no network\n"
    assert "a.yaml: not fully checked (models): no network" in github([], skipped=skipped)
    (item,) = json.loads(report_json(Report(skipped=skipped)))["skipped"]
    assert (item["reason"], item["help"]) == ("no network", "go online")


ERROR = Finding("SD104", "split-draft", Severity.ERROR, "draft is split", Span("a.yaml", 1, 1, 1, 2))
PASSED, BROKEN = ProfileVerdict("a.yaml", "a", "0", "ok"), ProfileVerdict("b.yaml", None, None, "invalid")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (Report(verdicts=(PASSED, PASSED)), "All checks passed: 2 profiles"),
        (
            Report(verdicts=(PASSED,), suppressed=2),
            "All checks passed: 1 profile, 2 ignored",
        ),
        (
            Report((replace(ERROR, severity=Severity.INFO),), verdicts=(PASSED,)),
            "All checks passed: 1 profile, 1 info",
        ),
        (
            Report((ERROR, ERROR, replace(ERROR, severity=Severity.WARNING)), verdicts=(PASSED, PASSED)),
            "Found 2 errors, 1 warning in 2 profiles",
        ),
        (
            Report((replace(ERROR, code="SD002"),), verdicts=(BROKEN,)),
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
