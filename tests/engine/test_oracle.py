"""The oracle's answers about command lines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm


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
