"""A node that only computes, told as text and as JSON."""

from __future__ import annotations

import json

import pytest

from specserve.plan.launchplan import LaunchPlan
from specserve.report.servers import JsonView, TextView
from specserve.serve import events

PLAN = LaunchPlan(
    name="two", fingerprint="f", vllm="0.33", platform="cuda", argv=("vllm", "serve", "m"), env={}, engine_kwargs={},
    host="127.0.0.1", port=8000, model="m", stall_timeout_s=600, shutdown_timeout_s=30, node_rank=1,
)  # fmt: skip
JOINED = events.Joined(1, 2, 24.0, None)


def test_as_text_it_says_who_answers(capsys: pytest.CaptureFixture[str]) -> None:
    TextView(PLAN)(JOINED)
    written = capsys.readouterr()
    assert written.out == ""  # there is no address to tell
    assert written.err.startswith("node 1 of 2 joined in 24 s\nnode 0 answers the requests")


def test_as_json_it_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    JsonView(PLAN)(JOINED)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["node_rank"], line["nodes"]) == ("joined", 1, 2)
