"""`specserve convert` of a real vLLM that runs: by its process the whole launch, by its URL what it tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
TARGET = str(Path(__file__).parents[2] / "demo" / "target")


def converted(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specserve", "convert", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_its_process_has_the_launch_and_its_engine_names_that_process(tiny_server: Up) -> None:
    core = tiny_server.engine_core()
    assert core
    refused = converted("--pid", core.pid)
    first = next(one for one in tiny_server.members() if "serve" in one.cmdline())
    assert refused.returncode == 2 and f"convert --pid {first.pid}" in refused.stderr
    done = converted("--pid", first.pid)
    assert done.returncode == 0, done.stderr
    made, was = yaml.safe_load(done.stdout), yaml.safe_load(tiny_server.profile.read_text())
    assert made["target"] == was["target"] and made["speculation"] == was["speculation"]
    assert made["server"]["port"] == tiny_server.port and made["engine"]["max_num_seqs"] == 8


def test_its_url_tells_the_model_and_that_it_speculates(tiny_server: Up) -> None:
    done = converted("--url", tiny_server.url)
    made = yaml.safe_load(done.stdout)
    assert done.returncode == 1 and made["vllm"].startswith(">=0.")
    assert made["target"] == {"model": TARGET, "max_model_len": 512}
    assert made["speculation"] == {"num_speculative_tokens": 4}
    assert made["server"] == {"host": "127.0.0.1", "port": tiny_server.port, "served_model_name": "tiny"}
    assert "it does not tell its method and draft" in done.stderr
