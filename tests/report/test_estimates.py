"""What is shown while a benchmark runs."""

from __future__ import annotations

import sys

import pytest

from specserve.measure.bench.rundir import Progress
from specserve.report.estimates import BenchView


def test_a_progress_line_that_is_cut_keeps_the_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with BenchView() as view:
        text = "baseline, summarise, concurrency 16, temperature 0.7: 123.4 tokens/s"
        view(Progress(text, done=7, total=240, left_s=332.0))
    line = capsys.readouterr().err.split("\r\x1b[K")[1]
    assert (
        line.startswith("7/240, about 5.5 min left; baseline, summarise, concurrency 16") and len(line) < 80
    )
