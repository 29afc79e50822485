"""Detached servers as people and as programs read them."""

from __future__ import annotations

import dataclasses
import json

from specserve.report.servers import table
from specserve.report.text import json_document
from specserve.serve.records import Ended, Record, Seen

RECORD = Record(
    name="llama70b-8b", boot_id="b", watcher=(7, 1), started_at_s=1000.0, log_path="/l", profile="p.yaml",
    alternative=None, settings=(), url="http://127.0.0.1:8000", port=8000,
    drafts="draft_model K=5",
    api_key_env="MY_KEY", shutdown_timeout_s=30, leader=(4711, 1),
)  # fmt: skip
READY = Seen("llama70b-8b", "ready", "", RECORD, 0.75)
BASELINE = dataclasses.replace(RECORD, name="base", drafts="")
DEAD = Seen(
    "base",
    "dead",
    "vLLM was killed by SIGKILL, while serving: the kernel killed it",
    dataclasses.replace(BASELINE, ended=Ended("vLLM was killed", "the kernel killed it", "see `dmesg`")),
)


def test_a_server_is_a_line_and_what_is_wrong_stands_below() -> None:
    assert table([READY, DEAD], now_s=1000 + 7500).splitlines() == [
        "NAME         STATE  PORT  UP          DRAFTS           ACCEPTED",
        "llama70b-8b  ready  8000  2 h 05 min  draft_model K=5  0.75",
        "base         dead   8000  -           -                -",
        "  base  vLLM was killed by SIGKILL, while serving: the kernel killed it",
        "  hint: see `dmesg`",
    ]


def test_programs_get_all_of_it() -> None:
    content = json.loads(json_document({"servers": [READY, DEAD]}))
    ready, dead = content["servers"]
    assert ready["state"] == "ready"
    assert (ready["record"]["port"], ready["record"]["api_key_env"]) == (8000, "MY_KEY")
    assert ready["acceptance_rate"] == 0.75
    assert dead["record"]["ended"]["message"] == "vLLM was killed"
