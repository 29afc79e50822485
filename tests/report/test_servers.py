"""What `up` says about a server's life, in a pipe, on a terminal and for machines."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.errors import LaunchError
from specserve.metrics import Acceptance
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.report import console
from specserve.report.servers import JsonView, TextView, figures, ready_block, table
from specserve.report.text import duration
from specserve.serve import events
from specserve.serve.client import Answer
from specserve.serve.events import Phase
from specserve.serve.records import Record, Seen

Captured = pytest.CaptureFixture[str]
PLAN = LaunchPlan(
    name="demo", fingerprint="0" * 64, vllm="0.32.0+cpu", platform="cpu", argv=("vllm", "serve", "demo/target"), env={},
    engine_kwargs={}, host="127.0.0.1", port=8000, model="demo", stall_timeout_s=600.0, shutdown_timeout_s=30.0,
)  # fmt: skip
READY = events.Ready("http://127.0.0.1:8000", "demo", 19.82, "KV cache 29,056 tokens")
LIFE: tuple[events.Event, ...] = (
    events.Started(4711, "/state/logs/demo.log"),
    events.Progress(Phase.ENGINE),
    events.Progress(Phase.ENGINE, 0.5),
    events.Progress(Phase.ENGINE, 14.2, is_over=True),
    events.Progress(Phase.WEIGHTS),
    events.Progress(Phase.WEIGHTS, 31.0),
    events.Progress(Phase.WEIGHTS, 31.5),
    events.Progress(Phase.WEIGHTS, 62.0),
    events.Progress(Phase.WEIGHTS, 65.0, is_over=True),
    READY,
    events.Stopping("SIGTERM", 30.0),
    events.Stopped(4.13, killed=False),
)
TALK = """\
starting vLLM (pid 4711), log: /state/logs/demo.log
  starting the engine … 14 s
  loading weights … 31 s so far
  loading weights … 62 s so far
  loading weights … 65 s
ready in 20 s
KV cache 29,056 tokens
Ctrl-C stops it
sent SIGTERM; running requests may finish for up to 30 s
stopped in 4.1 s; nothing is left running
"""
BLOCK = """\
url      http://127.0.0.1:8000/v1
model    demo
curl     curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d \
'{"model": "demo", "prompt": "def __len__(self):", "max_tokens": 48, "temperature": 0}'
ask      specserve ask 'def __len__(self):' --max-tokens 48 --temperature 0 --server \
http://127.0.0.1:8000
"""


def test_in_a_pipe_each_phase_is_a_line_and_a_long_one_says_that_it_goes_on(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    view = TextView(PLAN)
    for event in LIFE:
        if isinstance(event, events.Progress):
            clock.now = event.took_s
        view(event)
    captured = capsys.readouterr()
    assert captured.err == TALK
    assert captured.out == BLOCK


def test_for_machines_every_event_is_one_json_object(capsys: Captured) -> None:
    view = JsonView(PLAN)
    for event in LIFE:
        view(event)
    view.failed(LaunchError("it died", causes=("because",), hint="do this", log_path="/l"))
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.err.splitlines()]
    told = ["started", *["progress"] * 4, "ready", "stopping", "stopped", "failed"]
    assert [record["event"] for record in records] == told
    assert all(record["version"] == 1 and record["name"] == "demo" for record in records)
    assert records[-1]["causes"] == ["because"]
    assert json.loads(captured.out) == records[5]
    assert (records[5]["url"], records[5]["model"]) == ("http://127.0.0.1:8000", "demo")
    assert captured.out.count("\n") == 1


def test_a_key_is_shown_by_the_name_of_its_variable_alone() -> None:
    plan = replace(PLAN, env={"VLLM_API_KEY": FromEnv("TEAM_KEY")})
    block = ready_block(replace(READY, url="http://127.0.0.1:8123"), plan)
    assert '-H "Authorization: Bearer $TEAM_KEY"' in block
    assert "VLLM_API_KEY=$TEAM_KEY specserve ask" in block and "--server http://127.0.0.1:8123" in block


def test_durations_are_short() -> None:
    seconds = (-1, 3.14, 41.2, 150, 210, 3599, 11220, 90000, float("inf"))
    texts = ["0 s", "3.1 s", "41 s", "2.5 min", "3.5 min", "60 min", "3 h 07 min", "1 d 01 h", "-"]
    assert list(map(duration, seconds)) == texts


RECORD = Record(
    name="llama70b-8b", watcher=(7, 1), started_at_s=1000.0, log_path="/l",
    url="http://127.0.0.1:8000", drafts="draft_model K=5", api_key_env="MY_KEY",
)  # fmt: skip
LISTED = Seen("llama70b-8b", "ready", "", RECORD, 0.75)
DEAD = Seen(
    "base",
    "dead",
    "vLLM was killed by SIGKILL, while serving: the kernel killed it",
    replace(RECORD, name="base", drafts="", end="vLLM was killed", hint="see `dmesg`"),
)


def test_a_server_is_a_line_and_what_is_wrong_stands_below() -> None:
    assert table([LISTED, DEAD], now_s=1000 + 7500).splitlines() == [
        "NAME         STATE  URL                    UP          DRAFTS           ACCEPTED",
        "llama70b-8b  ready  http://127.0.0.1:8000  2 h 05 min  draft_model K=5  0.75",
        "base         dead   http://127.0.0.1:8000  -           -                -",
        "  base  vLLM was killed by SIGKILL, while serving: the kernel killed it",
        "  hint: see `dmesg`",
    ]


RUN = Acceptance(100, 400, 264, (90, 74, 58, 42))
DRAFTED = "acceptance 0.66, mean acceptance length 3.64, per position 0.90 0.74 0.58 0.42"


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({"speculates": False}, "no speculation"),
        ({}, "acceptance unknown: the server shows no metrics"),
        ({"speculates": True, "acceptance": Acceptance()}, "speculation is on, but nothing was drafted"),
        ({"speculates": True, "acceptance": RUN}, DRAFTED),
        (
            {"speculates": True, "acceptance": RUN, "other_requests": 1},
            f"{DRAFTED} (1 other request ran: acceptance is the server's)",
        ),
    ],
)
def test_under_an_answer_stand_its_speed_and_what_is_known_of_speculation(
    known: dict[str, Any], line: str
) -> None:
    spent: dict[str, Any] = {
        "completion_tokens": 101,
        "ttft_s": 0.0354,
        "last_token_s": 1.0354,
        "finish_reason": "length",
    }
    speed = "TTFT 35 ms, 101 tokens, 100.0 tokens/s, stopped at the token limit"
    assert figures(Answer("m", "chat", **spent, **known)) == [speed, line]
