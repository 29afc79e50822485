"""`specserve watch` beside a real vLLM under traffic: its figures are the difference of two raw scrapes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.texts import post

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
LIMIT_S = 600.0


def counter(up: Up, name: str) -> float:
    """A counter as it stands in the raw text."""
    with urllib.request.urlopen(f"{up.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.M))


NAMES = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "generation_tokens_total",
    "request_success_total",
)


def test_its_figures_are_what_the_server_counted_meanwhile(tiny_server: Up) -> None:
    command = [
        sys.executable,
        "-m",
        "specserve",
        "watch",
        tiny_server.url,
        *("--window", "10m"),  # however slow the machine is, all lies in it
        "--format",
        "json",
    ]
    reports: list[dict[str, Any]] = []

    def read(lines: Iterable[str]) -> None:
        for line in lines:
            reports.append(json.loads(line))

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=read, args=(process.stdout,))
        reader.start()
        wait_until(lambda: bool(reports))
        before = {name: counter(tiny_server, name) for name in NAMES}
        for number in range(16):
            post(tiny_server, prompt=f"def function_{number}(self, value):", max_tokens=64, temperature=0)
        gained = {name: counter(tiny_server, name) - before[name] for name in NAMES}
        wait_until(lambda: finished(reports[-1]) == 16)
        process.send_signal(signal.SIGINT)
        reader.join()
    assert process.returncode == 130
    counted = reports[-1]["window"]["counted"]
    acceptance = counted["acceptance"]
    drafts, drafted, accepted = (
        gained[f"spec_decode_num_{name}_total"] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert drafts >= 200
    assert (acceptance["drafts"], acceptance["draft_tokens"]) == (drafts, drafted)
    assert sum(acceptance["accepted_per_position"]) == acceptance["accepted_tokens"] == accepted
    assert counted["generation_tokens"] == gained["generation_tokens_total"]
    assert sum(counted["ttft_s"]["counts"].values()) == sum(counted["tpot_s"]["counts"].values()) == 16
    assert reports[-1]["verdict"]["word"] in {"UNDECIDED", "STEADY"}


def finished(report: dict[str, Any]) -> int | None:
    return report["window"]["counted"]["finished_requests"] if report["window"] else None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
