"""`specserve distill` with real vLLM: interrupted, repeated, and honest if nothing is gained."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0


def traffic(file: Path) -> Path:
    """Heads of functions that nobody has written."""
    rng = random.Random(7)
    words = [
        "read",
        "parse",
        "send",
        "close",
        "open",
        "merge",
        "split",
        "count",
        "lines",
        "table",
        "query",
        "index",
    ]
    rows = []
    for number in range(104):
        said = " ".join(rng.choices(words, k=14))
        head = f'def {"_".join(rng.choices(words, k=3))}{number}(self, value):\n    """{said}."""\n'
        rows.append({"model": "demo", "prompt": head, "max_tokens": 16, "temperature": 0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_distillation_goes_on_after_an_interruption_and_changes_nothing_without_a_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    profile = tmp_path / "demo.yaml"
    text = (ROOT / "configs" / "demo.yaml").read_text()
    for name in ("wide", "draft"):  # a draft that guesses everything can gain nothing
        text = text.replace(f"../demo/{name}", str(ROOT / "demo" / "target"))
    profile.write_text(text)
    before = profile.read_bytes()
    command = [
        sys.executable, "-m", "specserve", "distill", str(profile), "--traffic", str(traffic(tmp_path / "log.jsonl")),
        "--train-for", "5s",
    ]  # fmt: skip

    said = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as first:
        assert first.stderr is not None
        for line in first.stderr:
            said.append(line)
            if "training: 0 %" in line:
                first.send_signal(signal.SIGINT)
    assert first.returncode == 130, "".join(said)
    assert "the same command trains anew" in "".join(said)
    (folder,) = (tmp_path / "state" / "distill").iterdir()
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert all(len(row["token_ids"]) == len(row["logprobs"]) == row["completion_tokens"] for row in rows)
    trained = [row for row in rows if row["id"].startswith("train/")]
    assert {len(step) for row in trained for step in row["logprobs"]} <= {10, 11}

    second = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert second.returncode == 1, second.stderr
    assert "20 held out" in second.stderr and "the target answers" not in second.stderr
    assert "the new draft is not better" in second.stdout
    assert profile.read_bytes() == before
    result = json.loads((folder / "result.json").read_text())
    assert (result["is_better"], result["proof"]) == (False, None)
