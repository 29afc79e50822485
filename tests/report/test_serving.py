"""What `up` says about a server's life, in a pipe, on a terminal and for machines."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specserve.errors import LaunchError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.report import console
from specserve.report.servers import JsonView, TextView, ready_block, table
from specserve.report.text import duration, json_document
from specserve.serve import events
from specserve.serve.events import Phase
from specserve.serve.records import Record, Seen
from tests.report.conftest import Terminal

PLAN = LaunchPlan(
    name="demo", fingerprint="0" * 64, vllm="0.32.0+cpu", platform="cpu", argv=("vllm", "serve", "demo/target"), env={},
    engine_kwargs={}, host="127.0.0.1", port=8000, model="demo", stall_timeout_s=600.0, shutdown_timeout_s=30.0,
)  # fmt: skip
READY = events.Ready("http://127.0.0.1:8000", "demo", 19.82)
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
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_on_a_terminal_the_running_phase_rewrites_its_line() -> None:
    terminal = Terminal()
    view = TextView(PLAN, stream=terminal)
    view(events.Progress(Phase.WEIGHTS))
    view(events.Progress(Phase.WEIGHTS, 3.1))
    assert terminal.getvalue().endswith("\r\x1b[K  loading weights … 3.1 s so far")
    view(events.Progress(Phase.WEIGHTS, 3.4, is_over=True))
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_for_machines_every_event_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (3.14, "3.1 s"),
        (41.2, "41 s"),
        (150, "2.5 min"),
        (210, "3.5 min"),
        (3599, "60 min"),
        (11220, "3 h 07 min"),
        (90000, "1 d 01 h"),
        (float("inf"), "-"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


RECORD = Record(
    name="llama70b-8b", boot_id="b", watcher=(7, 1), started_at_s=1000.0, log_path="/l",
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


def test_programs_get_all_of_it() -> None:
    content = json.loads(json_document({"servers": [LISTED, DEAD]}))
    ready, dead = content["servers"]
    assert ready["state"] == "ready"
    assert ready["record"]["api_key_env"] == "MY_KEY"
    assert ready["acceptance_rate"] == 0.75
    assert dead["record"]["end"] == "vLLM was killed"
