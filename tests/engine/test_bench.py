"""`specserve bench` on the small pair with real vLLM; tests/soak has launches of its own variants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specserve.measure.bench.result import Result, from_json

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
