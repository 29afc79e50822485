"""The child that trains, on a small pair; and in `make soak` all of `specserve distill` with real vLLM."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "demo" / "draft"
LIMIT_S = 240.0


def trained(answers: Path, out: Path) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of the child, and what it tells."""
    request = {"draft": str(DRAFT), "answers": str(answers), "out": str(out), "budget_s": 300, "epochs": 20}
    command = [sys.executable, "-P", "-m", "specserve.engine.distilling"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # for so little, two wait for each other
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()  # it stays open: the child ends when its parent is gone
        told = [json.loads(line) for line in child.stdout]
        return child.wait(LIMIT_S), told


def rate(rows: list[dict[str, Any]], draft: Path) -> float:
    """Share of the tokens that a draft guesses."""
    import torch
    from transformers import AutoModelForCausalLM

    text = torch.tensor([[*row["prompt_token_ids"], *row["token_ids"]] for row in rows])
    model = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32)
    with torch.inference_mode():
        guesses = model(text).logits.argmax(-1)[:, 11:-1]
    return float((guesses == text[:, 12:]).float().mean())


@pytest.mark.vllm
def test_a_draft_learns_what_the_target_says_and_can_be_served(tmp_path: Path) -> None:
    """The target is sure of the next token of a cycle, which no draft knows yet, and which is easily learned."""
    rows: list[dict[str, Any]] = []
    for start in range(50):
        part = "train" if start < 30 else "validation" if start < 40 else "test"
        ids = [300 + (start + 7 * at) % 50 for at in range(36)]
        logprobs = [[[token, -0.01], [5, -6.0]] for token in ids[12:]]
        line = {"id": f"{part}/{start}", "prompt_token_ids": ids[:12], "token_ids": ids[12:]}
        rows.append({**line, "logprobs": logprobs})
    answers, out = tmp_path / "answers.jsonl", tmp_path / "out"
    (out / "draft").mkdir(parents=True)
    (out / "draft" / "of-an-interrupted-training").touch()
    refused = {"id": "train/refused", "error": "line 51: too long"}
    answers.write_text("".join(json.dumps(row) + "\n" for row in [*rows, refused]))
    code, (first, *_, last) = trained(answers, out)
    assert (code, first["event"], first["step"], last["event"]) == (0, "evaluated", 0, "done")
    new = out / "draft"
    assert {file.name for file in new.iterdir()} == {file.name for file in DRAFT.iterdir()}
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (new, DRAFT)]
    assert sizes[0] <= sizes[1]
    assert rate(rows[40:], DRAFT) < 0.2 and rate(rows[40:], new) > 0.9


@pytest.mark.vllm
def test_what_cannot_be_read_is_told_and_ends_the_child(tmp_path: Path) -> None:
    code, (message,) = trained(tmp_path / "none.jsonl", tmp_path)
    assert (code, message["event"]) == (1, "failed") and "none.jsonl" in message["error"]


def traffic(file: Path) -> Path:
    """Heads of functions that nobody has written."""
    rng = random.Random(7)
    words = "read parse send close open merge split count lines table query index".split()
    rows = []
    for number in range(104):
        said = " ".join(rng.choices(words, k=14))
        head = f'def {"_".join(rng.choices(words, k=3))}{number}(self, value):\n    """{said}."""\n'
        rows.append({"model": "demo", "prompt": head, "max_tokens": 16, "temperature": 0})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.engine
@pytest.mark.soak
def test_a_distillation_goes_on_after_an_interruption_and_changes_nothing_without_a_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    profile = tmp_path / "demo.yaml"
    text = (ROOT / "configs" / "demo.yaml").read_text()
    for name in ("wide", "draft"):  # a draft that guesses everything can gain nothing
        text = text.replace(f"../demo/{name}", str(ROOT / "demo" / "target"))
    profile.write_text(text)
    log = str(traffic(tmp_path / "log.jsonl"))
    command = [
        sys.executable,
        "-m",
        "specserve",
        "distill",
        str(profile),
        "--traffic",
        log,
        "--train-for",
        "5s",
    ]
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
    assert profile.read_text() == text
    result = json.loads((folder / "result.json").read_text())
    assert (result["is_better"], result["proof"]) == (False, None)
