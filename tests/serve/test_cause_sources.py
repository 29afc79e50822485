"""Every text that the tables rely on stands where they say: in the installed vLLM and what it brings along."""

from __future__ import annotations

import re
import time

import pytest

from specserve.serve.causetable import Row, table
from specserve.vllm.versions import installed

# A Python file below site-packages; "(0.33)" behind it: only that vLLM has the text.
FILE = re.compile(r"(?P<file>\S+\.py)(?: \((?P<minor>0\.\d+)\))?")
SAYS = [(row.name, who, literal) for row in table() for who, literal in row.says]
FILES = [says for says in SAYS if FILE.fullmatch(says[1])]


@pytest.mark.vllm
@pytest.mark.parametrize(("name", "who", "literal"), FILES)
def test_the_text_is_in_the_installed_file_that_writes_it(name: str, who: str, literal: str) -> None:
    vllm = installed()
    assert vllm is not None
    match = FILE.fullmatch(who)
    assert match
    if match["minor"] and not vllm.version.startswith(f"{match['minor']}."):
        assert match["file"].startswith("vllm/")
        return
    source = (vllm.package.parent / match["file"]).read_text(encoding="utf-8")
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
def test_what_is_looked_for_stands_in_the_example(row: Row) -> None:
    assert any(literal in row.example for _, literal in row.says)


def test_no_pattern_runs_away_on_what_looks_like_its_match() -> None:
    endings = ["", "a" * 3000, "(" * 500, "'" * 999, "[" * 99 + "x" * 900, "GiB " * 200, "a.b" * 500 + ": "]
    noise = [f"{literal}{ending}" for _, _, literal in SAYS for ending in endings]
    text = "\n".join(noise)
    before = time.process_time()
    found = sum(row.find(text) is not None for row in table())
    assert 0 < found < len(table())
    assert time.process_time() - before < 60  # the processor's time, and one that runs away takes hours
