"""The child that trains an EAGLE-3 head, in the environment of `make heads`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.distill.run import train
from specserve.serve.signals import StopRequest

pytestmark = [pytest.mark.engine, pytest.mark.soak]
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-heads" / "bin" / "python"
TARGET = ROOT / "demo" / "target"
K = 3


def answers(file: Path) -> Path:
    """The target's own greedy text: a head learns what the target says, from its hidden states."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(TARGET).eval()
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    rows: list[dict[str, Any]] = []
    for number, line in enumerate((ROOT / "demo" / "prompts.jsonl").read_text().splitlines()):
        ids = tokenizer(json.loads(line)["prompt"], return_tensors="pt").input_ids
        with torch.inference_mode():
            text = model.generate(ids, max_new_tokens=32, do_sample=False)[0].tolist()
        part = ("test", "validation", "train", "train")[number % 4]
        prompt = ids.shape[1]
        rows.append({"id": f"{part}/{number}", "prompt_token_ids": text[:prompt], "token_ids": text[prompt:]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def accepted(request: dict[str, Any], head: Path) -> float:
    """By the head's own guesses, in the environment that has its classes."""
    code = (
        "import json, sys; request = json.loads(sys.argv[1])\n"
        "from specserve.engine.drafts import Eagle3Head, read_answers\n"
        "right, of = Eagle3Head(request).judge(read_answers(request['answers'], 'test'))[1]\n"
        "print(right / of)"
    )
    command = [str(PYTHON), "-P", "-c", code, json.dumps({**request, "draft": str(head)})]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def test_a_head_learns_what_the_target_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PYTHON.exists(), "make heads"
    monkeypatch.setattr(sys, "executable", str(PYTHON))
    head, out = tmp_path / "head", tmp_path / "out"
    subprocess.run([PYTHON, Path(__file__).with_name("untrained_head.py"), TARGET, head], check=True)
    out.mkdir()
    request = {
        "draft": str(head), "target": str(TARGET), "answers": str(answers(tmp_path / "a.jsonl")),
        "out": str(out), "k": K, "budget_s": 80.0, "epochs": 500,
    }  # fmt: skip
    train(request, log_path=tmp_path / "log", stop=StopRequest())
    assert accepted(request, out / "draft") > accepted(request, head) + 0.005
