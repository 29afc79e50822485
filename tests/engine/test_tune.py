"""`specserve tune` on real servers: few launches, an interruption that is gone on with, a choice that is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.profile.load import load_profile
from tests.engine.conftest import ROOT, tiny_profile

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
]  # minutes; test_bench_traffic.py interrupts the same code in CI
QUICK = ["-w", "code", "-c", "1", "--k-max", "3", "--budget", "8m"]
LIMIT_S = 900.0


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """A test that fails or is interrupted ends the tune that it started, which ends its servers."""
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


def tune(profile: Path, *options: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(profile.parent / "state")}
    command = [sys.executable, "-m", "specserve", "tune", str(profile), *QUICK, *options]
    _started.append(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT)
    )
    return _started[-1]


def finished(process: subprocess.Popen[bytes], *, code: int = 0) -> bytes:
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, err.decode()
    return out


def passes(folder: Path) -> list[dict[str, Any]]:
    lines = [path.read_text().splitlines() for path in folder.glob("**/passes.jsonl")]
    return [json.loads(line) for found in lines for line in found]


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The small pair: what its drafts cost is most of a step."""
    return tiny_profile(tmp_path, port=0)


def test_an_interrupted_tune_leaves_no_server_and_goes_on_where_it_stopped(profile: Path) -> None:
    first = tune(profile)
    began = time.monotonic()
    while len(passes(profile.parent)) < 1:
        assert first.poll() is None and time.monotonic() - began < LIMIT_S
        time.sleep(0.2)
    servers = children(first)
    assert servers
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert b"the same command resumes from what was measured" in err
    states = [process.status() for process in servers if process.is_running()]
    assert all(state == psutil.STATUS_ZOMBIE for state in states)
    before = passes(profile.parent)
    text = profile.read_text()
    profile.write_text(f"# mine\n{text}")
    content = json.loads(finished(tune(profile, "--write", "--format", "json")))
    after = passes(profile.parent)
    assert after[: len(before)] == before
    keys = [(each["launch"], each["block"], str(each["point"]), each["variant"]) for each in after]
    assert len(set(keys)) == len(keys)
    assert {each["num_speculative_tokens"] for each in content["rows"]} == {1, 2, 3}
    assert {each["point"]["concurrency"] for each in content["rows"]} == {1}
    choice, written = content["choice"], load_profile(str(profile)).speculation
    assert profile.read_text().startswith("# mine\n")
    if choice["verdict"]["word"] == "PAYS":
        assert written is not None and "specserve tune: " in profile.read_text()
        assert written.keys["num_speculative_tokens"] == choice["setting"]["tokens"]
    elif choice["verdict"]["word"] != "INCONCLUSIVE":
        assert written is None
