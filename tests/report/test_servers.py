"""Detached servers as people and as programs read them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from specserve.report.servers import as_json, table
from specserve.serve.detached.observe import Recent, Seen
from specserve.serve.detached.registry import Ended, Record

RECORD = Record(
    name="llama70b-8b", run="r", boot_id="b", started_at_s=1000.0, log_path="/l", profile="p.yaml",
    fingerprint="0123456789abcdef" * 4, vllm="0.33.0", url="http://127.0.0.1:8000", host="127.0.0.1", port=8000,
    model="meta-llama/Llama-3.1-70B-Instruct", method="draft_model", num_speculative_tokens=5,
    devices=("0", "1", "2", "3"), device_share=0.9, device_bytes=None, shutdown_timeout_s=30, stall_timeout_s=600,
    api_key_env="MY_KEY", launcher=(7, 1), leader=(4711, 1),
)  # fmt: skip
READY = Seen("llama70b-8b", "ready", "", RECORD, Recent(60, 80), 3, 0)
BASELINE = dataclasses.replace(RECORD, name="base", method=None, num_speculative_tokens=None)
DEAD = Seen(
    "base",
    "dead",
    "vLLM was killed by SIGKILL, while serving: the kernel killed it",
    dataclasses.replace(
        BASELINE, ended=Ended(2000.0, -9, "vLLM was killed", "the kernel killed it", "see `dmesg`")
    ),
)
LOST = Seen("demo", "lost", "its state on disk was removed; `specserve down demo` ends it", pids=(12, 13))


def test_a_wide_terminal_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert table([READY, DEAD, LOST], now_s=1000 + 7500).splitlines() == [
        "NAME         STATE  PORT  UP          DRAFTS           ACCEPTED  MODEL",
        "llama70b-8b  ready  8000  2 h 05 min  draft_model K=5  0.75      meta-llama/Llama-3.1-70B-Instruct",
        "base         dead   8000  -           -                -         meta-llama/Llama-3.1-70B-Instruct",
        "demo         lost   -     -           -                -         -",
        "  base  vLLM was killed by SIGKILL, while serving: the kernel killed it",
        "  hint: see `dmesg`",
        "  demo  its state on disk was removed; `specserve down demo` ends it",
    ]


def test_a_pipe_of_80_columns_goes_without_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = table([READY, DEAD], now_s=1042).splitlines()
    assert lines[0].split() == ["NAME", "STATE", "PORT", "UP", "DRAFTS", "ACCEPTED"]
    assert max(map(len, lines)) <= 80


def test_text_from_elsewhere_gives_the_terminal_no_orders() -> None:
    evil = dataclasses.replace(RECORD, model="\x1b[2Jm", method="\x07")
    text = table([Seen("x", "hung", "\x9b31m", evil)], now_s=1042)
    assert not set(text) & set("\x1b\x07\x9b")


def test_programs_get_all_of_it() -> None:
    content = as_json([READY, DEAD, LOST])
    assert json.loads(json.dumps(content)) == content
    ready, dead, lost = content["servers"]
    assert content["version"] == 1
    assert (ready["state"], ready["acceptance_rate"], ready["pid"], ready["running_requests"]) == (
        "ready",
        0.75,
        4711,
        3,
    )
    assert ready["api_key_env"] == "MY_KEY"
    assert dead["ended"]["exit_code"] == -9 and dead["uptime_s"] is None
    assert lost == {"name": "demo", "state": "lost", "detail": LOST.detail, "pids": [12, 13]}
