"""What `specserve watch` shows: lines, a block, a picture."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import TrafficError
from specserve.measure.watch.advice import Advice
from specserve.measure.watch.figures import Reading, between, figures
from specserve.measure.watch.verdict import WatchState as State
from specserve.measure.watch.verdict import WatchVerdict as Verdict
from specserve.measure.watch.watch import WatchedServer, WatchRequest
from specserve.measure.watch.watch import WatchReport as Report
from specserve.metrics.prometheus import read
from specserve.report.watch import as_json, block, line, picture, show_watch, verdict_lines

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Traffic

URL = "http://127.0.0.1:8000"


def report(
    *, model: str = "demo", sentence: str = "a step yields 3.20 tokens", advice: str | None = None
) -> Report:
    """Sixty seconds of traffic."""
    engine = Traffic(model=model, running=3, waiting=1, kv_cache_usage=0.25)
    before = Reading(0.0, read(engine.text))
    engine.step(1000, (0.8, 0.6, 0.5, 0.3), finished=100)
    engine.ttft_s, engine.tpot_s = [0.04] * 99 + [0.3], [0.006] * 100
    stretch = between(before, Reading(60.0, read(engine.text)))
    assert stretch is not None
    return Report(
        at_s=1.795e9,
        verdict=Verdict(State.STEADY, sentence),
        advice=Advice("more_tokens", advice) if advice else None,
        figures=figures([stretch]),
        running_requests=3,
        waiting_requests=1,
    )


def drawn(shown: Report, *, width: int = 100) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False, highlight=False).print(picture(shown, url=URL))
    return stream.getvalue()


def test_the_block(golden: Callable[[str, str], None]) -> None:
    golden(
        "report/watch-block.txt", "".join(f"{label:<13}{text}\n" for label, text in block(report(), url=URL))
    )


def test_the_block_says_that_the_last_reading_failed() -> None:
    gone = dataclasses.replace(report(), is_final=True, trouble=TrafficError("nothing listens"))
    assert dict(block(gone, url=URL))["measured"].endswith("100 requests finished; the last reading failed")


def test_the_picture(golden: Callable[[str, str], None]) -> None:
    text = drawn(report(advice="position 4 adds little"))
    golden("report/watch-screen.txt", "\n".join(row.rstrip() for row in text.splitlines()[:-1]) + "\n")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture_fits_its_terminal(width: int) -> None:
    assert all(len(row) <= width for row in drawn(report(), width=width).splitlines())


def test_a_line_is_at_most_80_columns_also_on_a_large_server() -> None:
    shown = report()
    assert len(line(shown)) <= 80


def test_a_server_that_is_missing_is_drawn_as_that() -> None:
    gone = Report(0.0, Verdict(State.UNSEEN, "nothing listens"), trouble=TrafficError("nothing listens"))
    assert "UNSEEN: nothing listens" in drawn(gone)


def test_names_from_outside_cannot_steer_the_terminal() -> None:
    evil = report(model="x\x1b[2J[bold]y", sentence="fine\x1b]0;title\x07", advice="[red]no[/red]\x1b[1m")
    for text in (line(evil), *verdict_lines(evil), *(row for _, row in block(evil, url=URL)), drawn(evil)):
        assert "\x1b" not in text
    assert "[bold]y" in drawn(evil)
    assert "[red]no[/red]" in drawn(evil)


def test_json_says_null_for_what_is_not_known() -> None:
    gone = Report(0.0, Verdict(State.UNSEEN, "gone"), trouble=TrafficError("gone"))
    found = as_json(gone, url=URL, labels={})
    assert (found["reachable"], found["error"], found["window"], found["advice"]) == (
        False,
        "gone",
        None,
        None,
    )


def test_json_times_are_milliseconds() -> None:
    window = as_json(report(), url=URL, labels={"profile": "mine", "fingerprint": "abc"})["window"]
    assert window["ttft_ms"]["p50"] == pytest.approx(25.25, abs=0.01)
    assert window["tpot_ms"]["mean"] == pytest.approx(6.0)
    assert window["e2e_ms"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}


def test_engines_and_requests_that_ended_otherwise_have_their_lines() -> None:
    shown = report()
    assert shown.figures is not None
    counters = dataclasses.replace(shown.figures.counters, finished={"stop": 97, "abort": 3, "error": 0})
    (name,) = shown.figures.whole.engines
    engines = {name: counters, name._replace(engine="1"): counters}
    whole = dataclasses.replace(shown.figures.whole, engines=engines)
    two = dataclasses.replace(shown.figures, counters=counters, whole=whole)
    rows = dict(block(dataclasses.replace(shown, figures=two), url=URL))
    assert rows["ended by"] == "3 abort, of 100 requests"
    assert rows["engine 1"] == "mean length 3.20, 1,000 drafts, 100 requests"
    assert not {"ended by", "engine 0"} & dict(block(shown, url=URL)).keys()


def test_a_pipe_hears_of_trouble_once_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    watched = WatchedServer(WatchRequest(URL))
    gone = dataclasses.replace(report(), trouble=TrafficError("nothing listens"))
    show_watch(watched, (gone, gone, report()), is_json=False, only_last=False)
    written = capsys.readouterr()
    assert (
        written.err.count("nothing listens; waiting for the server") == 1
        and "the server answers again" in written.err
    )
    assert written.out.count("tokens/s") == 1
