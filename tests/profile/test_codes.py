"""Every SD0xx code on a profile that has it, and on one that says the same and is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from specserve.profile.load import examine

TARGET = "target: {model: org/target}\n"
EXAMPLES = {
    "SD002": ("target: {model: org/target", TARGET),
    "SD004": (f"{TARGET}engine: {{seed: 1, seed: 2}}", f"{TARGET}engine: {{seed: 2}}"),
    "SD005": (f"{TARGET}servers: {{port: 1}}", f"{TARGET}server: {{port: 1}}"),
    "SD006": (
        "target: {model: m, tensor_parallel_size: four}",
        "target: {model: m, tensor_parallel_size: 4}",
    ),
    "SD007": (f"{TARGET}speculation: {{method: ngram}}", f"{TARGET}speculation: {{method: suffix}}"),
    "SD009": (f"extends: ./no-such-parent.yaml\n{TARGET}", TARGET),
}


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_is_found_and_nothing_else(code: str, write: Callable[..., Path]) -> None:
    bad, good = EXAMPLES[code]
    assert [finding.code for finding in examine(write(dedent(bad)))[1]] == [code]
    assert examine(write(dedent(good)))[1] == []
