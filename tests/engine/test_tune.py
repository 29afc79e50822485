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
QUICK = ["-w", "code", "-c", "1,2", "--k-max", "3", "--max-tokens", "12"]
LIMIT_S = 600.0


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


def answers(folder: Path) -> list[dict[str, Any]]:
    return [{**request, "arm": each["arm"]} for each in passes(folder) for request in each["requests"]]


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The small pair: what its drafts cost is most of a step."""
    return tiny_profile(tmp_path, port=0)


def test_an_interrupted_tune_leaves_no_server_and_goes_on_where_it_stopped(profile: Path) -> None:
    first = tune(profile, "--no-confirm")
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
    assert not [
        process for process in servers if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]
    before = passes(profile.parent)
    content = json.loads(finished(tune(profile, "--no-confirm", "--format", "json")))
    after = passes(profile.parent)
    assert after[: len(before)] == before
    assert len({(each["launch"], each["block"]) for each in after}) == len(after)
    assert content["version"] == 1
    assert {point["num_speculative_tokens"] for point in content["points"]} == {1, 2, 3}
    assert {point["concurrency"] for point in content["points"]} == {1, 2}
    measured = [point for point in content["points"] if point["measured"]["output_tokens_per_s"]]
    assert {point["concurrency"] for point in measured} == {1, 2}
    assert content["candidates"][0]["has_ladder"]
    # a chat says first who speaks, which is no step
    plain = [each for each in answers(profile.parent) if each["arm"] == "baseline"]
    assert plain and all(len(each["chunk_gaps_ms"]) == each["output_tokens"] - 1 for each in plain)


def test_a_whole_tune_starts_three_servers_and_writes_what_it_chose(profile: Path) -> None:
    text = profile.read_text()
    profile.write_text(f"# mine\n{text}")
    content = json.loads(finished(tune(profile, "--write", "--format", "json")))
    choice = content["choice"]
    # what was chosen by two launches is confirmed by a third, which has the last word
    assert content["launches"] == (3 if content["confirmed"] else 2)
    assert content["confirmed"] or not choice["speculates"]
    after = profile.read_text()
    assert after.startswith("# mine\n") and "specserve tune: " in after
    found = load_profile(str(profile)).speculation
    assert (found is not None) == choice["speculates"]
    if found is not None:
        assert found.keys["num_speculative_tokens"] == choice["speculation"]["num_speculative_tokens"]
        assert len(content["confirmed"]) == 2


def test_a_draft_as_large_as_the_target_is_told_to_gain_nothing(profile: Path) -> None:
    same = f"speculation.model={ROOT / 'demo' / 'target'}"
    content = json.loads(finished(tune(profile, "--set", same, "--no-confirm", "--format", "json")))
    lengths = [
        point["mean_acceptance_length"]["value"]
        for point in content["points"]
        if point["num_speculative_tokens"] == 3
    ]
    assert min(lengths) > 3.5
    assert not content["choice"]["speculates"]
    assert "a draft step costs" in content["choice"]["reason"]
