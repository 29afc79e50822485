"""The bytes of profiles: from disk, stdin or whoever stands in for a file; no more than a profile may have."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.profile import source
from specserve.profile.source import MAX_BYTES


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_KEPT", {})


def test_stdin_is_read_once_and_can_be_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.recall("-") == b""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a: 1")))
    assert source.read("-") == b"a: 1"
    assert source.recall("-") == source.recall("-") == b"a: 1"


def test_of_a_large_file_only_so_much_is_read_and_nothing_of_a_device(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    assert len(source.read(str(file))) == len(source.recall(str(file))) == MAX_BYTES + 1
    with pytest.raises(OSError, match="not a regular file"):
        source.read("/dev/zero")
