"""A benchmark's report in the form that is asked for. Writes no file."""

from __future__ import annotations

from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench import resultfile
from specserve.measure.bench.result import Result
from specserve.report.console import json_text

FORMS = ("text", "markdown", "html", "json")


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """The report; `stream` says whether the text is coloured (stdout, if not given). Ends with a line break."""
    match form:
        case "json":
            return without_user(json_text(resultfile.text(result)))
        case "html":
            from specserve.report.benchhtml import html_report

            return html_report(result)
        case "markdown":
            from specserve.report.benchmarkdown import markdown_report

            return markdown_report(result)
    from specserve.report.benchtext import text

    return without_user(text(result, stream=stream))
