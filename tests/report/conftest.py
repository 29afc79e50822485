"""Two findings over two files: a mismatch between both, a warning with evidence."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.diagnostics import Finding, ProfileVerdict, Related, Report, Severity, Span

BASE = """\
target:
  model: org/target
  tensor_parallel_size: 4
"""
CHILD = """\
extends: ./_base.yaml
speculation:
  method: draft_model
  model: org/draft
  draft_tensor_parallel_size: 2
env:
  VLLM_NCCL_SO_PATH: ./a.so
"""
SPLIT = Finding(
    "SD104",
    "split-draft",
    Severity.ERROR,
    "draft tensor parallelism is not the target's",
    Span("child.yaml", 5, 31, 5, 32, "speculation.draft_tensor_parallel_size"),
    label="draft asks for 2",
    related=(
        Related(Span("_base.yaml", 3, 25, 3, 26, "target.tensor_parallel_size"), "target runs on 4 [all]"),
    ),
    help="write `draft_tensor_parallel_size: 4`, or leave it out",
)
WARNED = Finding(
    "SD111",
    "remote-code",
    Severity.WARNING,
    "`env.VLLM_NCCL_SO_PATH` makes the server run custom code",
    Span("child.yaml", 7, 3, 7, 20, "env.VLLM_NCCL_SO_PATH"),
    notes=("it holds 100% of the log's level, and more: a note",),
)


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def two(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Report:
    """A report of one profile, in whose folder the test then is."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    write(BASE, "_base.yaml")
    write(CHILD, "child.yaml")
    verdict = ProfileVerdict("child.yaml", "child", "0" * 64, "errors")
    return Report((SPLIT, WARNED), verdicts=(verdict,))
