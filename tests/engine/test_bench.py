"""`specserve bench` on the small pair with real vLLM: measured, and held to its promises.

A launch of its own variants is left to the soak: two starts of vLLM, and its load generator's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specserve.measure.bench.result import Result, from_json
from tests.engine.conftest import tiny_profile

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
BENCH = [sys.executable, "-m", "specserve", "bench"]
LIMIT_S = 420.0
PROMPTS = ["def add(a, b):\n", "class Point:\n", "import os\nimport", "for index in range("]


def prompts_in(folder: Path) -> Path:
    path = folder / "snippets.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": 16}) + "\n" for prompt in PROMPTS))
    return path


def bench(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")}
    return subprocess.run(
        [*BENCH, *options], capture_output=True, text=True, env=env, timeout=LIMIT_S, check=False
    )


def test_two_servers_that_run_are_measured_and_their_speculation_is_seen(
    tiny_server: Up, tmp_path: Path
) -> None:
    options = ["-w", str(prompts_in(tmp_path)), "-c", "2", "--quick"]
    done = bench(
        tmp_path, tiny_server.url, "--with", f"again={tiny_server.url}", *options, "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    result = from_json(Result, done.stdout)
    assert len(result.variants) == 2 and result.variants[1].name == "again"
    assert [(cell.invalid, cell.figures and cell.figures.failed_requests) for cell in result.cells] == [
        (None, 0),
        (None, 0),
    ]
    assert all(cell.figures and cell.figures.acceptance for cell in result.cells)
    (comparison,) = result.comparisons
    assert comparison.speedup is not None and comparison.mean_acceptance_length is not None
    assert 1 < comparison.mean_acceptance_length < 5


@pytest.mark.soak
def test_a_profile_is_measured_against_itself_without_speculation(tmp_path: Path) -> None:
    profile = tiny_profile(tmp_path, port=0, changes={"engine": {"max_num_seqs": 4}})
    profile.write_text(
        profile.read_text()
        + "expect: [{workload: snippets, concurrency: 2, max_ttft_p99_ms: 0.001, min_speedup: 0.0001}]\n"
    )
    run = tmp_path / "run"
    options = ["-w", str(prompts_in(tmp_path)), "-c", "2", "--quick"]
    done = bench(tmp_path, str(profile), *options, "-o", str(run), "--format", "json")
    assert done.returncode == 1, done.stderr  # no first token comes within a microsecond
    result = from_json(Result, done.stdout)
    assert [variant.name for variant in result.variants] == ["baseline", "profile"]
    assert [(cell.invalid, cell.figures and cell.figures.failed_requests) for cell in result.cells] == [
        (None, 0),
        (None, 0),
    ]
    (comparison,) = result.comparisons
    assert comparison.speedup is not None and comparison.mean_acceptance_length is not None
    assert 1 < comparison.mean_acceptance_length < 5
    assert result.cells[0].figures is not None and result.cells[0].figures.acceptance is None
    assert {p.limit.key: p.kept.value for cell in result.cells for p in cell.promises} == {
        "min_speedup": "kept",
        "max_ttft_p99_ms": "missed",
    }
    passes = [json.loads(line) for line in (run / "passes.jsonl").read_text().splitlines()]
    requests = [{**item, "variant": each["variant"]} for each in passes for item in each["requests"]]
    assert all(item["ok"] and 0 < item["ttft_s"] <= item["latency_s"] for item in requests)
    assert all("text" not in item for item in requests)
    assert any(item["acceptance"] for item in requests if item["variant"] == "profile")
    assert not any(item["acceptance"] for item in requests if item["variant"] == "baseline")
    assert (run / "report.html").stat().st_size > 1000
    assert {file.name for file in (run / "logs").iterdir()} == {
        "baseline-0.log",
        "profile-0.log",
        "load-generator-0.log",
    }
