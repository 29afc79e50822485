"""Every text that the tables rely on stands where they say: in vLLM and what it brings along."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from specserve.serve.causes import CausePattern, table

# A Python file below site-packages; those of vLLM, which say in which version they are: tests/vllm/test_quotes.py.
FILE = re.compile(r"\S+\.py(?: \(.+\))?")
SAYS = [(row.name, who, literal) for row in table() for who, literal in row.says]
FILES = [says for says in SAYS if FILE.fullmatch(says[1])]
LIBRARIES = [says for says in FILES if not says[1].startswith("vllm/")]


@pytest.mark.vllm
@pytest.mark.installed
@pytest.mark.parametrize(("name", "who", "literal"), LIBRARIES)
def test_the_text_is_in_the_installed_file_that_writes_it(name: str, who: str, literal: str) -> None:
    package = find_spec(who.partition("/")[0])
    assert package is not None and package.origin is not None
    source = (Path(package.origin).parents[1] / who).read_text(encoding="utf-8")
    # one text, as Python writes a long one over several lines
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert literal in source or literal in joined, name


def test_a_text_of_vllm_names_its_file() -> None:
    others = {who for _, who, _ in SAYS if not FILE.fullmatch(who)}
    assert {who for who in others if who.startswith("vllm")} <= {
        "vllm's CUDA kernels",
        "vllm's log",
        "vllm up to 0.9",
        "vllm up to 0.13",
        "vllm up to 0.20",
        "vllm up to 0.23",
    }
    assert len([who for _, who, _ in FILES if who.startswith("vllm/")]) >= 60


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_what_is_looked_for_stands_in_the_example(row: CausePattern) -> None:
    assert any(literal in row.example for _, literal in row.says)


def test_no_pattern_runs_away_on_what_looks_like_its_match() -> None:
    endings = ["", "a" * 3000, "(" * 500, "'" * 999, "[" * 99 + "x" * 900, "GiB " * 200, "a.b" * 500 + ": "]
    noise = [f"{literal}{ending}" for _, _, literal in SAYS for ending in endings]
    text = "\n".join(noise)
    before = time.process_time()
    found = sum(row.find(text) is not None for row in table())
    assert 0 < found < len(table())
    assert time.process_time() - before < 60  # the processor's time, and one that runs away takes hours
