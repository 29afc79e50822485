"""The same three findings in every format, each as its readers see it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from specserve import __version__
from specserve.diagnostics import Report
from specserve.report.findings import concise, render
from specserve.report.formats import github, report_json, sarif

Golden = Callable[[str, str], None]


def test_as_text(three: Report, golden: Golden) -> None:
    golden("report/three.txt", render(three.findings, stream=io.StringIO()))


def test_as_one_line_each(three: Report, golden: Golden) -> None:
    golden("report/three-concise.txt", concise(three.findings))


def test_as_json(three: Report, golden: Golden) -> None:
    golden("report/three.json", report_json(three) + "\n")


def test_as_workflow_commands(three: Report, golden: Golden) -> None:
    golden("report/three-github.txt", github(three.findings))


def test_as_sarif(three: Report, golden: Golden) -> None:
    log = json.loads(sarif(three))
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["semanticVersion"] == __version__
    driver["semanticVersion"] = "@@VERSION@@"
    for rule in driver["rules"]:  # the manual pages have their own tests
        rule["shortDescription"] = rule["fullDescription"] = rule["help"] = "@@PAGE@@"
    golden("report/three.sarif", json.dumps(log, indent=2, ensure_ascii=False) + "\n")


def test_both_sides_of_a_mismatch_are_in_every_format_that_shows_places(three: Report) -> None:
    (split,) = [finding for finding in three.findings if finding.code == "SD104"]
    report = Report((split,))
    for text in (render([split], stream=io.StringIO()), report_json(report), github([split]), sarif(report)):
        assert "draft asks for 2" in text
        assert "target runs on 4" in text
        assert "_base.yaml" in text
