"""The page of contributed results: current, and made of nothing but shared results."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specserve.errors import FactError
from specserve.measure.bench.sharing import redacted
from specserve.report.bench import rendered

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
import build_results
from bench_result import example

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "build_results.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "measured.md is up to date\n")


def test_every_link_of_the_folder_leads_somewhere() -> None:
    for name in ("README.md", "measured.md"):
        file = ROOT / "docs" / "results" / name
        for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
            assert (file.parent / link).exists()


def test_a_result_becomes_a_row_and_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(rendered(redacted(example()), form="json"), encoding="utf-8")
    page = build_results.document(tmp_path)
    assert (
        "| `meta-llama/Llama-3.1-70B-Instruct` | eagle3 K=3, `yuhuili/EAGLE3-LLaMA3.3-Instruct-70B` |" in page
    )
    assert "| 1.10x to 2.53x | 1 | 2026-11-21 | [llama70b-8b](a.json) |" in page
    assert "| **2.17x** (2.08-2.25) PAYS; 38.1 → 82.6 tok/s |" in page
    assert "within one launch" in page


def test_a_result_with_more_than_may_be_shared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(rendered(example(), form="json"), encoding="utf-8")
    with pytest.raises(FactError, match=r"`a.json` holds more than a shared result has"):
        build_results.document(tmp_path)


def test_a_name_with_markup_is_refused_or_escaped(tmp_path: Path) -> None:
    evil = dataclasses.replace(redacted(example()), name="<script>")
    (tmp_path / "a.json").write_text(rendered(evil, form="json"), encoding="utf-8")
    with pytest.raises(FactError):
        build_results.document(tmp_path)


def test_a_file_name_with_markup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a](x).json").write_text(rendered(redacted(example()), form="json"), encoding="utf-8")
    with pytest.raises(FactError, match="a name of other characters"):
        build_results.document(tmp_path)


def test_a_folder_without_results_says_so(tmp_path: Path) -> None:
    assert "No result yet." in build_results.document(tmp_path)
