"""What `specserve watch --against` shows: lines, the table, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from specserve.errors import TrafficError
from specserve.measure.bench.result import Interval
from specserve.measure.watch.compare import (
    CanaryReport,
    CanaryState,
    ComparedFigure,
    FigureVerdict,
    ServerTotals,
)
from specserve.report.canary import as_json, final_lines, look_line, sentence, show_comparison

URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8000")
Golden = Callable[[str, str], None]
ACCEPTANCE = ComparedFigure(
    "acceptance", FigureVerdict.WORSE, 0.05, 0.312, 0.618, Interval(-0.306, -0.402, -0.210)
)
TPOT = ComparedFigure("tpot", FigureVerdict.NO_WORSE, 0.05, 0.0301, 0.0304, Interval(-0.01, -0.06, 0.04))
ERRORS = ComparedFigure("errors", FigureVerdict.UNDECIDED, 0.01, 0.0, 0.004, Interval(-0.004, -0.03, 0.02))
REPORT = CanaryReport(
    at_s=1.7952e9,
    seconds=612.0,
    blocks=38,
    state=CanaryState.ROLL_BACK,
    figures=(ACCEPTANCE, TPOT, ERRORS),
    canary=ServerTotals(148, 0, 0.9, restarts=2, has_answered=True),
    other=ServerTotals(1204, 5, 8.2, has_answered=True),
    is_final=True,
)
UNDECIDED = replace(
    REPORT,
    state=CanaryState.UNDECIDED,
    figures=(
        ComparedFigure(
            "acceptance", FigureVerdict.NOT_COMPARED, 0.05, why="the canary has no speculation counters"
        ),
        replace(TPOT, verdict=FigureVerdict.UNDECIDED, difference=Interval(0.1, -math.inf, math.inf)),
        ComparedFigure("errors", FigureVerdict.UNDECIDED, 0.01),
    ),
    canary=ServerTotals(trouble=TrafficError("nothing listens at http://127.0.0.1:8001")),
)


@pytest.mark.parametrize(("report", "name"), [(REPORT, "worse"), (UNDECIDED, "undecided")])
def test_the_table(report: CanaryReport, name: str, golden: Golden) -> None:
    lines = final_lines(report, urls=URLS)
    golden(f"report/canary-{name}.txt", "\n".join(lines) + "\n")
    assert all(len(line) <= 80 for text in lines for line in text.splitlines())


@pytest.mark.parametrize(("report", "name"), [(REPORT, "worse"), (UNDECIDED, "undecided")])
def test_the_object(report: CanaryReport, name: str, golden: Golden) -> None:
    golden(f"report/canary-{name}.json", json.dumps(as_json(report, urls=URLS), indent=2) + "\n")


def test_the_table_fits_with_large_numbers() -> None:
    wide = replace(REPORT, figures=(ACCEPTANCE, replace(TPOT, canary=12.3456, other=10.1), ERRORS))
    assert all(len(line) <= 80 for text in final_lines(wide, urls=URLS) for line in text.splitlines())


def test_a_line_is_at_most_80_columns_also_for_many_requests() -> None:
    busy = replace(
        REPORT,
        figures=tuple(replace(each, verdict=FigureVerdict.NO_WORSE) for each in REPORT.figures),
        canary=replace(REPORT.canary, requests=123_456),
    )
    assert look_line(busy).endswith(
        "123,456/1,204 requests  acceptance no worse  TPOT no worse  errors no worse"
    )
    assert len(look_line(busy)) <= 86


def test_a_verdict_in_words() -> None:
    promoted = replace(REPORT, state=CanaryState.PROMOTE, figures=(TPOT,))
    assert sentence(promoted) == "the canary is no worse"
    faster = replace(promoted, figures=(replace(TPOT, verdict=FigureVerdict.BETTER),))
    assert sentence(faster) == "the canary is better (TPOT) and in nothing worse"


def test_trouble_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    looks = [replace(UNDECIDED, is_final=False)] * 3
    assert show_comparison(iter(looks), urls=URLS, is_json=False) is looks[-1]
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.count("waiting for http://127.0.0.1:8001") == 1
