"""Rendered files on disk: what is stale is told, what is somebody else's is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.deploy.deployment import Artifact
from specserve.deploy.targets import put, stale
from specserve.errors import UsageError

HEAD = "# Rendered by `specserve render --to ray` from `demo`\n"
ONE, TWO = Artifact("a.yaml", f"{HEAD}a: 1\n"), Artifact("b/c.yaml", f"{HEAD}c: 1\n")


def test_what_was_written_is_up_to_date(tmp_path: Path) -> None:
    assert put((ONE, TWO), tmp_path) == 2
    assert stale((ONE, TWO), tmp_path) == []
    assert put((ONE, TWO), tmp_path) == 0


def test_missing_and_changed_files_are_told(tmp_path: Path) -> None:
    put((ONE, TWO), tmp_path)
    (tmp_path / "a.yaml").write_text(ONE.text + "b: 2\n")
    (tmp_path / "b" / "c.yaml").unlink()
    assert stale((ONE, TWO), tmp_path) == [
        ("a.yaml", "stale"),
        ("b/c.yaml", "missing"),
    ]


def test_a_folder_that_is_not_there_has_none_of_them(tmp_path: Path) -> None:
    assert stale((ONE,), tmp_path / "none") == [("a.yaml", "missing")]


def test_bytes_that_are_no_text_are_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError):
        put((ONE,), tmp_path)
    assert stale((ONE,), tmp_path) == [("a.yaml", "stale")]
