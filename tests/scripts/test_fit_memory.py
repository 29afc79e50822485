"""The fit of the memory bounds: what ships is what it gives, how good it is, and that it scores any file of points."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import fit_memory
from memory_points import POINTS, read

ROOT = Path(__file__).resolve().parents[2]
KNOWN = read(POINTS)
Table = dict[str, list[str]]


@pytest.fixture(scope="module")
def fit() -> str:
    command = [sys.executable, str(ROOT / "scripts" / "fit_memory.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_fit_gives_the_constants_that_ship(fit: str) -> None:
    assert "is not what this fit gives" not in fit


def test_the_page_shows_what_the_script_prints(fit: str) -> None:
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    assert page == fit_memory.with_table(page, fit.rstrip("\n"))


def _tables(text: str) -> list[Table]:
    """Each table of a text: its rows by the vLLM versions in their first column."""
    tables: list[Table] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| vLLM"):
            tables.append({})
        elif line.startswith("| "):
            tables[-1][cells[0]] = cells[1:]
    return tables


def _percent(cell: str) -> float:
    return float(cell.removesuffix("%"))


def test_the_estimate_is_as_good_as_promised_also_with_each_source_left_out(fit: str) -> None:
    for table in _tables(fit):
        assert _percent(table["all"][2]) <= 3 and _percent(table["0.21 and later"][2]) <= 5
        assert _percent(table["all"][3]) >= 90
        assert _percent(table["all"][4]) <= 10
        assert table["all"][5].startswith("0 of ") and table["all"][6].startswith("0 of ")


def _score(file: Path) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "fit_memory.py"), "--score", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_other_points_are_scored_and_said_to_be_held_out_or_in_sample(tmp_path: Path) -> None:
    new = {**KNOWN[0], "id": "x1", "source": "https://github.com/org/other/issues/1"}
    known = {**KNOWN[0], "id": "x2"}
    (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, (new, known))), encoding="utf-8")
    told = _score(tmp_path / "logs.jsonl")
    held_out, in_sample = told.index("Held-out"), told.index("In-sample")
    assert held_out < in_sample
    assert [table["all"][0] for table in _tables(told)] == ["1", "1"]


def test_points_that_say_too_little_are_counted_and_named(tmp_path: Path) -> None:
    sizes = {"layers": 32, "kv_heads": 8, "head_dim": 128, "hidden": 4096, "vocab": 128256}
    rows: list[dict[str, object]] = [
        {"id": "x1", "model": "a/b", "config": {**sizes, "params": 8030261248}, "gpu": "RTX 3090",
         "gpu_mem_gib": 23.56, "max_model_len": 131072, "gpu_memory_utilization": 0.9, "outcome": "oom",
         "vllm_version": "0.10.1", "draft": {"config": {**sizes, "params": 1_000_000_000}, "k": 3}},
        {"id": "x2", "model": "c/d", "config": sizes, "gpu": "24 GB class", "outcome": "serves", "quant": "awq"},
        {"id": "x3", "model": "c/d", "gpu_mem_gib": 24},
        {"id": "x4"},
        {"id": "x5", "gpu_mem_gib": "much", "outcome": "serves", "config": sizes},
    ]  # fmt: skip
    (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    told = _score(tmp_path / "logs.jsonl")
    (table,) = _tables(told)
    assert table["all"] == ["1", "0", "-", "-", "-", "0 of 1", "0 of 0"]
    assert "Not scored: 4" in told
    assert "- weights are not known: quantized, and not in the log: x2" in told
    assert "- the GPU's memory is not stated: x4" in told
    assert "- the outcome is not stated: x3" in told
    assert "x5" in told


def test_a_line_that_is_no_point_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs.jsonl").write_text('{"id": "x"}\n[]\n', encoding="utf-8")
    command = [
        sys.executable,
        str(ROOT / "scripts" / "fit_memory.py"),
        "--score",
        str(tmp_path / "logs.jsonl"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode and "logs.jsonl:2: not a JSON object" in done.stderr
    assert "Traceback" not in done.stderr


def test_points_with_fields_missing_or_of_any_type_are_scored_or_named() -> None:
    chance = random.Random(0)
    for _ in range(300):
        point = dict(chance.choice(KNOWN))
        for name in chance.sample(sorted(point), 2):
            point[name] = chance.choice([None, "?", [], {}, 0, -1, 1.5])
        assert fit_memory.score_lines([point], known=KNOWN)
