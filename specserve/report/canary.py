"""What `specserve watch --against` found: a line for each look, a table at the end, or JSON lines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from specserve.errors import SpecserveError
from specserve.measure.watch.compare import (
    CanaryReport,
    CanaryState,
    ComparedFigure,
    FigureVerdict,
    ServerTotals,
)
from specserve.report.console import filled, in_one_line, out, say, styled
from specserve.report.text import NONE, VERSION, Column, Table, count, json_values, picked, toned, took

_NAMES = {"acceptance": "acceptance", "tpot": "TPOT", "errors": "errors"}
_COLUMNS = (
    Column("figure", "name"),
    Column("canary"),
    Column("other"),
    Column("difference"),
    Column("interval"),
    Column("margin"),
    Column("verdict", "verdict"),
)


def show_comparison(reports: Iterable[CanaryReport], *, urls: tuple[str, str], is_json: bool) -> CanaryReport:
    """Print each report as it comes; the last one. `urls`: the canary's and the other server's."""
    say(
        f"comparing {urls[0]} (canary) with {urls[1]}; `3/20 requests`: the canary finished 3, the other server 20; "
        "`-`: not decided yet"
    )
    trouble: list[SpecserveError | None] = [None, None]
    for report in reports:
        if is_json:
            out(json.dumps(as_json(report, urls=urls)))
        elif report.is_final:
            out("\n".join(final_lines(report, urls=urls)))
        else:
            out(look_line(report))
        before, trouble = trouble, [report.canary.trouble, report.other.trouble]
        for url, old, new in zip(urls, before, trouble, strict=True):
            if new is not None and old is None and not report.is_final:
                say(f"{styled('warning', 'yellow')}: {new.message}; waiting for {url}")
    return report


def look_line(report: CanaryReport) -> str:
    """One look in 80 columns; `-` for a figure that is not decided or not compared."""
    moment = datetime.fromtimestamp(report.at_s).strftime("%H:%M:%S")
    decided = (FigureVerdict.BETTER, FigureVerdict.NO_WORSE, FigureVerdict.WORSE)
    words = "  ".join(
        f"{_NAMES[figure.name]} {figure.verdict.value if figure.verdict in decided else NONE}"
        for figure in report.figures
    )
    return f"{moment}  {report.canary.requests:,}/{report.other.requests:,} requests  {words}"


def final_lines(report: CanaryReport, *, urls: tuple[str, str]) -> list[str]:
    """The table and the verdict, in lines of 80 columns."""
    stream = sys.stdout
    rows = [
        ("canary", f"{in_one_line(urls[0])}, {_requests(report.canary)}"),
        ("other", f"{in_one_line(urls[1])}, {_requests(report.other)}"),
        ("compared", f"over {took(report.seconds)}, in {count(report.blocks, 'block')} of time"),
    ]
    lines = [filled(text, lead=f"{label:<13}", stream=stream) for label, text in rows]
    lines += [
        "",
        *Table(_COLUMNS, [_row(figure) for figure in report.figures], keys=1).text(stream=stream, indent=0),
    ]
    asides = [
        f"{_NAMES[figure.name]} is not compared: {figure.why}" for figure in report.figures if figure.why
    ]
    asides += report.notes
    lines += ["", *(filled(in_one_line(text), lead="note: ", stream=stream) for text in asides)]
    state = report.state.value
    text = filled(
        sentence(report), lead=f"{state}: ", shown=f"{toned(state, stream=stream)}: ", stream=stream
    )
    return [*lines, *([""] if asides else []), text]


def sentence(report: CanaryReport) -> str:
    """The verdict in one clause."""
    named = {
        verdict: ", ".join(_NAMES[figure.name] for figure in report.figures if figure.verdict is verdict)
        for verdict in FigureVerdict
    }
    if report.state is CanaryState.ROLL_BACK:
        return f"the canary is worse ({named[FigureVerdict.WORSE]})"
    if report.state is CanaryState.UNDECIDED:
        return f"not decided yet ({named[FigureVerdict.UNDECIDED] or 'a server does not answer'})"
    better = named[FigureVerdict.BETTER]
    return f"the canary is better ({better}) and in nothing worse" if better else "the canary is no worse"


def _requests(totals: ServerTotals) -> str:
    return f"{count(totals.requests, 'request')} finished, {totals.failed_requests:,} of them failed"


def _row(figure: ComparedFigure) -> tuple[str, ...]:
    """The cells of one figure; the difference of TPOT is a share of the other server's."""
    step, digits, unit = (1, 3, "") if figure.name == "acceptance" else (100, 1, " %")

    def value(number: float | None) -> str:
        if number is None:
            return NONE
        if figure.name == "tpot":
            return f"{number:.2f} s" if number >= 1 else f"{1000 * number:.1f} ms"
        return f"{100 * number:.2f} %" if figure.name == "errors" else f"{number:.3f}"

    found, difference, interval = figure.difference, NONE, NONE
    if found is not None:
        shown = [f"{step * bound:+.{digits}f}" for bound in (found.value, found.low, found.high)]
        difference = f"{shown[0]}{unit}"
        interval = f"{shown[1]} to {shown[2]}{unit}" if math.isfinite(found.high) else NONE
    values = value(figure.canary), value(figure.other), difference, interval
    return _NAMES[figure.name], *values, f"{step * figure.margin:g}{unit}", figure.verdict.value


def as_json(report: CanaryReport, *, urls: tuple[str, str]) -> dict[str, Any]:
    """Return the same for programs, `version` 1, TPOT in milliseconds; null if it is not known or not bounded."""
    canary, other = (
        {
            "url": url,
            **picked(totals, "requests", "failed_requests", "running_requests", "restarts"),
            "error": totals.trouble.message if totals.trouble is not None else None,
        }
        for totals, url in zip((report.canary, report.other), urls, strict=True)
    )
    return {
        "version": VERSION,
        "at": datetime.fromtimestamp(report.at_s, tz=UTC).isoformat(timespec="milliseconds"),
        "final": report.is_final,
        **picked(report, "state", "seconds", "blocks"),
        "sentence": sentence(report),
        "figures": {figure.name: _figure_json(figure) for figure in report.figures},
        "canary": canary,
        "other": other,
        "notes": list(report.notes),
    }


def _figure_json(figure: ComparedFigure) -> dict[str, Any]:
    unit = 1000 if figure.name == "tpot" else 1
    found = figure.difference
    return {
        "canary": figure.canary and unit * figure.canary,
        "other": figure.other and unit * figure.other,
        "difference": found and found.value,
        "interval": found and json_values((found.low, found.high)),
        **picked(figure, "margin", "verdict"),
        "why": figure.why or None,
    }
