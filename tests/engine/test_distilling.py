"""The child that trains, on a small pair: it learns, and leaves what can be served."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "demo" / "draft"


def cycle(start: int, length: int) -> list[int]:
    """Tokens that follow each other in a way that no draft knows yet, and that is easily learned."""
    return [300 + (start + 7 * at) % 90 for at in range(length)]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """A target that is sure of the next token of a cycle."""
    rows: list[dict[str, Any]] = []
    for part, starts in (("train", range(60)), ("validation", range(60, 70)), ("test", range(70, 90))):
        for start in starts:
            ids = cycle(start, 36)
            prompt, own = ids[:12], ids[12:]
            logprobs = [[[token, -0.01], [5, -6.0]] for token in own]
            rows.append(
                {"id": f"{part}/{start}", "prompt_token_ids": prompt, "token_ids": own, "logprobs": logprobs}
            )
    rows.append({"id": "train/refused", "error": "line 91: too long"})
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def child() -> Iterator[Callable[[dict[str, Any]], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(request: dict[str, Any]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specserve.engine.distilling"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        yield message
        if message["event"] in ("done", "failed"):
            return


def training(answers: Path, out: Path, **fields: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    return {
        "draft": str(DRAFT),
        "answers": str(answers),
        "out": str(out),
        "budget_s": 300,
        "epochs": 40,
        **fields,
    }


def rate(answers: Path, draft: Path) -> float:
    """Share of the held-out tokens that a draft guesses."""
    import torch
    from transformers import AutoModelForCausalLM

    rows = [row for row in map(json.loads, answers.read_text().splitlines()) if row["id"].startswith("test/")]
    text = torch.tensor([[*row["prompt_token_ids"], *row["token_ids"]] for row in rows])
    model = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32)
    with torch.inference_mode():
        guesses = model(text).logits.argmax(-1)[:, 11:-1]
    return float((guesses == text[:, 12:]).float().mean())


def test_a_draft_learns_what_the_target_says_and_can_be_served(
    answers: Path, tmp_path: Path, child: Callable[[dict[str, Any]], subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    (out / "draft").mkdir(parents=True)
    (out / "draft" / "of-an-interrupted-training").touch()
    first, *_, last = events(child(training(answers, out)))
    assert (first["event"], first["step"], last["event"]) == ("evaluated", 0, "done")

    names = {file.name for file in (out / "draft").iterdir()}
    assert names == {file.name for file in DRAFT.iterdir()}
    assert (out / "draft" / "model.safetensors").stat().st_size <= DRAFT.joinpath(
        "model.safetensors"
    ).stat().st_size
    assert rate(answers, DRAFT) < 0.2 and rate(answers, out / "draft") > 0.9


def test_what_cannot_be_read_is_told_and_ends_the_child(
    tmp_path: Path, child: Callable[[dict[str, Any]], subprocess.Popen[str]]
) -> None:
    process = child(training(tmp_path / "none.jsonl", tmp_path))
    (message,) = events(process)
    assert message["event"] == "failed" and "none.jsonl" in message["error"]
    assert process.wait(30) == 1
