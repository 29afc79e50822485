"""Commands beside a vLLM that runs: `ask`, `convert`, `watch`, and `bench` of two servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from specserve.measure.bench.passes import read_passes
from specserve.measure.bench.result import Result, from_json
from specserve.measure.tune.choose import acceptance_length, steps_by_request
from tests.engine.texts import post

if TYPE_CHECKING:
    from tests.engine.server import Server

pytestmark = pytest.mark.engine
TARGET = str(Path(__file__).parents[2] / "demo" / "target")
LIMIT_S = 420.0


def specserve(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specserve", *map(str, words)]
    whole = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, env=whole, check=False, timeout=LIMIT_S)


def ask(up: Server, *options: str) -> subprocess.CompletedProcess[str]:
    sampling = ("--max-tokens", "48", "--temperature", "0")
    return specserve("ask", "--server", up.url, "def fibonacci(n):", *sampling, *options)


def test_ask_streams_the_text_and_counts_the_acceptance_of_its_request(tiny_server: Server) -> None:
    done, streamed = ask(tiny_server, "--format", "json"), ask(tiny_server)
    assert done.returncode == streamed.returncode == 0, done.stderr + streamed.stderr
    answer = json.loads(done.stdout)
    assert (answer["model"], answer["mode"], answer["completion_tokens"]) == ("tiny", "chat", 48)
    assert answer["last_token_s"] > answer["ttft_s"] > 0
    assert answer["speculates"] and answer["other_requests"] == 0
    found = answer["acceptance"]
    assert found["draft_tokens"] >= found["accepted_tokens"] > 0
    # Every step gives the accepted tokens and one of the target's own; the first token comes from the prompt,
    # and of the last step's tokens those beyond the limit are dropped.
    assert 48 - 1 <= found["drafts"] + found["accepted_tokens"] <= 48 + 4
    assert streamed.stdout.removesuffix("\n") == answer["text"].removesuffix("\n") != ""
    figures, acceptance = streamed.stderr.splitlines()
    assert figures.startswith("TTFT ") and "48 tokens" in figures
    assert "stopped at the token limit" in figures
    assert acceptance.startswith("acceptance 0.")


def test_a_request_that_the_server_refuses(tiny_server: Server) -> None:
    done = ask(tiny_server, "--max-tokens", "100000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not take this request" in done.stderr


def test_a_process_has_the_launch_and_its_engine_names_that_process(tiny_server: Server) -> None:
    first, core = tiny_server.member("serve"), tiny_server.member("EngineCore")
    refused = specserve("convert", "--pid", core.pid)
    assert refused.returncode == 2 and f"convert --pid {first.pid}" in refused.stderr
    done = specserve("convert", "--pid", first.pid)
    assert done.returncode == 0, done.stderr
    made, was = yaml.safe_load(done.stdout), yaml.safe_load((tiny_server.folder / "tiny.yaml").read_text())
    assert made["target"] == was["target"] and made["speculation"] == was["speculation"]
    assert made["server"]["port"] == tiny_server.port and made["engine"]["max_num_seqs"] == 8


def test_a_url_tells_the_model_and_that_it_speculates(tiny_server: Server) -> None:
    done = specserve("convert", "--url", tiny_server.url)
    made = yaml.safe_load(done.stdout)
    assert done.returncode == 1 and made["vllm"].startswith(">=0.")
    assert made["target"] == {"model": TARGET, "max_model_len": 512}
    assert made["speculation"] == {"num_speculative_tokens": 4}
    assert made["server"] == {"host": "127.0.0.1", "port": tiny_server.port, "served_model_name": "tiny"}
    assert "with an unknown method and draft" in done.stderr


def test_two_servers_that_run_are_measured_and_their_steps_tell_every_smaller_k(
    tiny_server: Server, tmp_path: Path
) -> None:
    prompts, run = tmp_path / "snippets.jsonl", tmp_path / "run"
    texts = ("def add(a, b):\n", "class Point:\n", "import os\nimport", "for index in range(")
    prompts.write_text("".join(json.dumps({"prompt": each, "max_tokens": 16}) + "\n" for each in texts))
    options = ("-w", prompts, "-c", "2", "--quick", "-o", run, "--format", "json")
    servers = (tiny_server.url, "--with", f"again={tiny_server.url}")
    done = specserve("bench", *servers, *options, SPECSERVE_STATE_DIR=str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    result = from_json(Result, done.stdout)
    assert [variant.name for variant in result.variants[1:]] == ["again"]
    assert [(cell.invalid, cell.figures and cell.figures.failed_requests) for cell in result.cells] == [
        (None, 0)
    ] * 2
    (comparison,) = result.comparisons
    assert comparison.speedup is not None and comparison.mean_acceptance_length is not None
    # what `tune` walks again: the steps of each answer, as the server reports them
    requests = steps_by_request([each for each in read_passes(run) if each.variant == "again"])
    lengths = [acceptance_length(requests, tokens=tokens) for tokens in range(5)]
    assert all(low < high for low, high in pairwise(lengths))
    assert lengths[4] == pytest.approx(
        comparison.mean_acceptance_length, rel=0.2
    )  # that counts what an end cuts off


def counter(up: Server, name: str) -> float:
    """A counter as it stands in the raw text."""
    with urllib.request.urlopen(f"{up.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.M))


NAMES = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "generation_tokens_total",
)


def test_the_figures_of_watch_are_what_the_server_counted_meanwhile(tiny_server: Server) -> None:
    words = (
        "watch",
        tiny_server.url,
        "--window",
        "10m",
        "--format",
        "json",
    )  # all lies in it, however slow it is
    reports: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "specserve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout or ()
        reader = threading.Thread(target=lambda: reports.extend(map(json.loads, lines)))
        reader.start()
        wait_until(lambda: bool(reports))
        before = {name: counter(tiny_server, name) for name in NAMES}
        for number in range(16):
            post(tiny_server, prompt=f"def function_{number}(self, value):", max_tokens=64, temperature=0)
        gained = {name: counter(tiny_server, name) - before[name] for name in NAMES}
        wait_until(
            lambda: bool((found := reports[-1]["window"]) and found["counted"]["finished_requests"] == 16)
        )
        process.send_signal(signal.SIGINT)
        reader.join()
    assert process.returncode == 130
    counted = reports[-1]["window"]["counted"]
    acceptance = counted["acceptance"]
    drafts, drafted, accepted, generated = (gained[name] for name in NAMES)
    assert drafts >= 200
    assert (acceptance["drafts"], acceptance["draft_tokens"]) == (drafts, drafted)
    assert sum(acceptance["accepted_per_position"]) == acceptance["accepted_tokens"] == accepted
    assert counted["generation_tokens"] == generated
    assert sum(counted["ttft_s"]["counts"].values()) == sum(counted["tpot_s"]["counts"].values()) == 16
    assert reports[-1]["verdict"]["word"] in {"UNDECIDED", "STEADY"}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
