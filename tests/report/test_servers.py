"""Detached servers as people and as programs read them."""

from __future__ import annotations

import dataclasses
import json

from specserve.report.servers import table
from specserve.report.text import json_document
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


def test_a_server_is_a_line_and_what_is_wrong_stands_below() -> None:
    assert table([READY, DEAD, LOST], now_s=1000 + 7500).splitlines() == [
        "NAME         STATE  PORT  UP          DRAFTS           ACCEPTED",
        "llama70b-8b  ready  8000  2 h 05 min  draft_model K=5  0.75",
        "base         dead   8000  -           -                -",
        "demo         lost   -     -           -                -",
        "  base  vLLM was killed by SIGKILL, while serving: the kernel killed it",
        "  hint: see `dmesg`",
        "  demo  its state on disk was removed; `specserve down demo` ends it",
    ]


def test_text_from_elsewhere_gives_the_terminal_no_orders() -> None:
    evil = dataclasses.replace(RECORD, model="\x1b[2Jm", method="\x07")
    text = table([Seen("x", "hung", "\x9b31m", evil)], now_s=1042)
    assert not set(text) & set("\x1b\x07\x9b")


def test_programs_get_all_of_it() -> None:
    content = json.loads(json_document({"servers": [READY, DEAD, LOST]}))
    ready, dead, lost = content["servers"]
    assert (ready["state"], ready["running_requests"]) == ("ready", 3)
    assert (ready["record"]["port"], ready["record"]["api_key_env"]) == (8000, "MY_KEY")
    assert (ready["lately"]["accepted_tokens"], ready["lately"]["drafted_tokens"]) == (60, 80)
    assert dead["record"]["ended"]["exit_code"] == -9
    assert (lost["record"], lost["detail"], lost["pids"]) == (None, LOST.detail, [12, 13])
