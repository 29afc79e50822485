"""What `specserve watch` shows: an answer, lines, figures, a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import TrafficError
from specserve.measure.intervals import Estimate
from specserve.measure.verdict import Judged, Kept, Limit
from specserve.measure.watch.verdict import STEADY, UNSEEN, Advice, Reading, figures, verdict_of
from specserve.measure.watch.watch import WatchedServer, WatchReport
from specserve.metrics.prometheus import read
from specserve.report.watch import answer, figures_text, line, report_json, rows, show_watch

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Traffic

URL = "http://127.0.0.1:8000"


def report(*, model: str = "demo", sentence: str = "it is well", advice: str | None = None) -> WatchReport:
    """Sixty seconds of traffic."""
    engine = Traffic(model=model, running=3, waiting=1)
    readings = [Reading(0.0, read(engine.text))]
    for number in range(1, 13):
        engine.step(100, (0.8, 0.6, 0.5, 0.3), finished=20)
        readings.append(Reading(5.0 * number, read(engine.text)))
    engine.ttft_s, engine.tpot_s = [0.04] * 99 + [0.3], [0.006] * 100
    readings[-1] = Reading(60.0, read(engine.text))
    limit = Limit("max_tpot_p99_ms", 20.0, "my.yaml:5:3")
    promise = Judged(limit, Kept.KEPT, Estimate(9.0, 6.0, 12.0))
    return WatchReport(
        at_s=1.795e9,
        verdict=verdict_of(STEADY, sentence),
        advice=Advice("fewer_tokens", advice) if advice else None,
        promises=(promise, Judged(limit, Kept.UNDECIDED, why="too little")),
        window=figures(readings),
        running_requests=3,
        waiting_requests=1,
    )


GONE = WatchReport(0.0, verdict_of(UNSEEN, "gone"), trouble=TrafficError("gone"))


def test_the_figures(golden: Callable[[str, str], None]) -> None:
    text = "".join(f"{label:<13}{text}\n" for label, text in rows(report()))
    golden("report/watch-figures.txt", text)


def test_the_answer_comes_first() -> None:
    shown = figures_text(report(advice="try `num_speculative_tokens: 3`")).splitlines()
    assert shown[0] == "STEADY: it is well. What to do: try `num_speculative_tokens: 3`"
    assert any(row.startswith("  per position  0.80 0.60 0.50 0.30") for row in shown)
    assert figures_text(GONE) == "UNSEEN: gone"


def test_names_from_outside_cannot_steer_the_terminal() -> None:
    evil = report(model="x\x1b[2J[bold]y", sentence="fine\x1b]0;title\x07", advice="[red]no[/red]\x1b[1m")
    for text in (line(evil), answer(evil), *(row for _, row in rows(evil)), figures_text(evil)):
        assert "\x1b" not in text


def test_json_is_the_report_and_null_for_what_is_not_known() -> None:
    watched = WatchedServer(URL)
    found = json.loads(report_json(report(), watched))
    assert found["window"]["counted"]["tpot_s"]["sum"] == pytest.approx(0.6)
    assert found["window"]["ttft_p99_ms"]["high"] is None  # too few requests
    assert found["promises"][0]["limit"]["place"] == "my.yaml:5:3"
    gone = json.loads(report_json(GONE, watched))
    assert (gone["trouble"], gone["window"], gone["advice"]) == ("gone", None, None)


def test_a_pipe_gets_a_line_a_look_and_the_answer_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    watched = WatchedServer(URL)
    show_watch(watched, (GONE, GONE, report()), is_json=False, only_last=False, verbose=False)
    written = capsys.readouterr().out
    assert [row[10:] for row in written.splitlines()][:3] == ["UNSEEN", "UNSEEN: gone", "UNSEEN"]
    assert written.count("tokens/s") == written.count("STEADY: it is well") == 1
    assert all(len(row) <= 80 for row in written.splitlines())
