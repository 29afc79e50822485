"""The fitted constants: which hold for which vLLM, and that they are what the fit on public logs gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specserve.plan.memory.constants import Runner, regime, regimes

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("version", "runner", "since"),
    [
        ("0.33", "v2", "0.33"),
        ("0.33.1+cu130", "v2", "0.33"),
        ("0.40", "v2", "0.33"),
        ("0.32.0", "v2", "0.32"),
        ("0.33", "v1", "0.21"),
        ("0.19.0", "v1", "0.17"),
        ("v0.16.1", "v1", "0.8"),
        ("0.6.3", "v1", "0.8"),
        ("0.32.0+cpu", "cpu", "0.26"),
    ],
)
def test_a_version_has_the_constants_of_the_newest_row_that_is_not_newer(
    version: str, runner: Runner, since: str
) -> None:
    assert regime(version, runner=runner).since == since


def test_every_row_says_where_it_comes_from_and_its_bounds_are_in_order() -> None:
    for row in regimes():
        assert row.source
        for bounds in (
            row.logit_bytes,
            row.spread,
            row.one_gpu_bytes,
            row.several_gpus_bytes,
            row.graphs_bytes,
        ):
            assert 0 <= bounds.low <= bounds.high


def test_logs_that_say_little_are_scored_as_far_as_they_go(tmp_path: Path) -> None:
    llama = {
        "layers": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "hidden": 4096,
        "vocab": 128256,
        "params": 8030261248,
    }
    rows: list[dict[str, object]] = [
        {"model": "a/b", "config": llama, "gpu": "RTX 3090", "gpu_mem_gib": 23.56, "tp": 1, "max_model_len": 131072,
         "gpu_memory_utilization": 0.9, "outcome": "oom", "vllm_version": "0.10.1", "draft": {"k": 3}},
        {"model": "c/d", "config": {}, "gpu": "?", "gpu_mem_gib": 24, "outcome": "serves", "regime": "v0"},
    ]  # fmt: skip
    (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = [
        sys.executable,
        str(ROOT / "scripts" / "fit_memory.py"),
        "--score",
        str(tmp_path / "logs.jsonl"),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "1 of 2 logs can be judged" in told
    assert "fails         does_not_fit  1" in told and "false FIT     0" in told


@pytest.fixture(scope="module")
def fit() -> list[str]:
    command = [sys.executable, str(ROOT / "scripts" / "fit_memory.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_the_fit_gives_the_constants_that_ship(fit: list[str]) -> None:
    fitted = [line for line in fit if line.endswith("# fitted")]
    shipped = (
        (ROOT / "specserve" / "plan" / "memory" / "constants.toml").read_text(encoding="utf-8").splitlines()
    )
    assert len(fitted) == 3
    assert [line for line in shipped if line.endswith("# fitted")] == fitted


def test_the_logs_it_was_fitted_on_are_met(fit: list[str]) -> None:
    figures = {line.split("  ")[0]: line for line in fit}
    assert float(figures["weights"].split("MAPE ")[1].split("%")[0]) < 0.5
    assert float(figures["KV cache"].split("error ")[1].split("%")[0]) < 0.5
    assert int(figures["intervals"].split("%")[0].split()[-1]) >= 90
    assert figures["false FIT"].endswith(" 0")
