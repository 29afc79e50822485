"""The oracle's answers about command lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm
DEMO = Path(__file__).parents[2] / "demo"
TARGET, DRAFT = "target", "draft"


def test_each_request_has_an_answer_in_the_words_of_vllm() -> None:
    lines = [
        ["org/m", "--max-num-seqs", "8", "--speculative-config.method", "mtp"],
        ["--model", "org/m", "--max-num-seqs", "many"],
        ["org/m", "--unheard-of"],
        ["--help"],
    ]
    text = "".join(json.dumps({"id": number, "argv": argv}) + "\n" for number, argv in enumerate(lines))
    child = subprocess.run(
        [sys.executable, "-P", "-m", "specserve.engine.oracle"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    taken, wrong, unknown, help_text = map(json.loads, child.stdout.splitlines())
    assert taken["arguments"]["model_tag"] == "org/m" and taken["arguments"]["max_num_seqs"] == 8
    assert taken["arguments"]["speculative_config"] == {"method": "mtp"}
    assert wrong == {"id": 1, "refused": "argument --max-num-seqs: invalid int value: 'many'"}
    assert unknown["refused"] == "unrecognized arguments: --unheard-of"
    assert "refused" in help_text


def judged(*argvs: list[str], env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The answers for eight pretended H100."""
    gpu = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85_520_809_984}
    lines = [
        {"id": number, "argv": argv, "folder": str(DEMO), "env": env or {}}
        for number, argv in enumerate(argvs)
    ]
    child = subprocess.run(
        [sys.executable, "-P", "-m", "specserve.engine.oracle", "--gpu", json.dumps(gpu), "--count", "8"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in child.stdout.splitlines()]


def test_vllm_judges_a_launch_for_a_gpu_that_is_not_here() -> None:
    block = {"method": "draft_model", "model": DRAFT, "num_speculative_tokens": 4}
    drafting = [TARGET, "--max-model-len", "512", "--speculative-config", json.dumps(block)]
    too_long = [TARGET, "--max-model-len", "9999"]
    odd = [TARGET, "--tensor-parallel-size", "3"]
    loaded = [TARGET, "--max-num-seqs", "64", "--max-cudagraph-capture-size", "100"]
    served, long_, split, changed = judged(drafting, too_long, odd, loaded)
    assert served["effective"]["model_config.max_model_len"] == 512
    assert served["effective"]["model_runner"] == "V2"
    assert served["effective"]["speculative_config.num_speculative_tokens"] == 4
    assert served["effective"]["draft.max_model_len"] == 512
    assert served["effective"]["compilation_config.cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert "max_model_len (9999)" in long_["refused"] and long_["at"].startswith("vllm/config/model.py:")
    assert "divisible by tensor parallel size (3)" in split["refused"]
    assert {"argument": "max_cudagraph_capture_size", "asked": 100}.items() <= changed["asked"][0].items()
