"""`specserve bench` on the small pair with real vLLM: measured, gated, interrupted and resumed, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.measure.bench.resultfile import from_json
from tests.engine.conftest import Up, tiny_profile

pytestmark = pytest.mark.engine
BENCH = [sys.executable, "-m", "specserve", "bench"]
LIMIT_S = 240.0
PROMPTS = ["def add(a, b):\n", "class Point:\n", "import os\nimport", "for index in range("]


def prompts_in(folder: Path) -> Path:
    path = folder / "snippets.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")}
    return subprocess.run(
        [*BENCH, *options], capture_output=True, text=True, env=env, timeout=LIMIT_S, check=False
    )


def children_of(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def test_a_profile_is_measured_against_itself_without_speculation(tmp_path: Path) -> None:
    profile = tiny_profile(tmp_path, port=0, changes={"engine": {"max_num_seqs": 4}})
    profile.write_text(
        profile.read_text()
        + "expect: [{workload: snippets, concurrency: 2, min_mean_acceptance_length: 5, min_speedup: 0.001}]\n"
    )
    run = tmp_path / "run"
    options = ["-w", str(prompts_in(tmp_path)), "-c", "2", "--blocks", "2", "--max-tokens", "16"]
    done = bench(tmp_path, str(profile), *options, "-o", str(run), "--format", "json")
    assert done.returncode == 1, done.stderr  # a mean acceptance length of K + 1 is missed for sure
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["version"] == 1
    result = from_json(content)
    assert [arm.name for arm in result.arms] == ["baseline", "profile"]
    assert [(cell.invalid, cell.figures and cell.figures.failed_requests) for cell in result.cells] == [
        (None, 0),
        (None, 0),
    ]
    (comparison,) = result.comparisons
    assert comparison.speedup is not None and comparison.mean_acceptance_length is not None
    assert 1 < comparison.mean_acceptance_length < 5
    assert result.cells[0].figures is not None and result.cells[0].figures.acceptance is None
    assert {promise.key: promise.kept for promise in result.promises}["min_mean_acceptance_length"] is False
    requests = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    assert all(item["ok"] and 0 < item["ttft_s"] <= item["latency_s"] for item in requests)
    assert all("text" not in item for item in requests)
    assert any(item["acceptance"] for item in requests if item["arm"] == "profile")
    assert not any(item["acceptance"] for item in requests if item["arm"] == "baseline")
    assert (run / "report.html").stat().st_size > 1000
    assert {file.name for file in (run / "logs").iterdir()} == {
        "baseline-0-0.log",
        "profile-0-0.log",
        "load-generator-0-0.log",
    }


def test_a_server_that_runs_is_interrupted_and_resumed(tiny_server: Up, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["-w", str(prompts_in(tmp_path)), "-c", "2", "--blocks", "40", "--max-tokens", "32"]
    arguments = [*BENCH, tiny_server.url, "--with", f"again={tiny_server.url}", *options, "-o", str(run)]
    with (tmp_path / "err").open("wb") as err, subprocess.Popen(arguments, stderr=err, stdout=err) as process:
        deadline = time.monotonic() + LIMIT_S
        while not (run / "passes.jsonl").exists() or (run / "passes.jsonl").stat().st_size < 10:
            assert process.poll() is None, (tmp_path / "err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = children_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130, (tmp_path / "err").read_text()
    told = (tmp_path / "err").read_text()
    assert f"specserve bench --resume {run}" in told and "Traceback" not in told
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in started)
    before = len((run / "passes.jsonl").read_text().splitlines())
    done = bench(tmp_path, "--resume", str(run), "--budget", "5s", "--format", "json")
    assert done.returncode == 0, done.stderr
    result = from_json(json.loads(done.stdout))
    assert len((run / "passes.jsonl").read_text().splitlines()) > before
    assert any("resumed" in note for note in result.notes)
    figures = [cell.figures for cell in result.cells]
    assert figures[0] is not None and figures[1] is not None
    assert abs(figures[0].blocks - figures[1].blocks) <= 1
