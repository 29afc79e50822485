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


def test_what_is_kept_stands_in_for_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"on disk")
    source.keep(str(file), b"in the editor")
    assert source.read(str(file)) == source.recall(str(file)) == b"in the editor"


def test_a_reader_stands_in_while_it_lasts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"now")
    with source.read_by(lambda name: b"then: " + name.encode()):
        assert source.read("p.yaml") == b"then: p.yaml"
        assert source.recall(str(file)) == b"now"
    assert source.read(str(file)) == b"now"


def test_of_a_file_without_end_only_so_much_is_read() -> None:
    assert len(source.read("/dev/zero")) == len(source.recall("/dev/zero")) == MAX_BYTES + 1


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    for function in (source.read, source.recall):
        with pytest.raises(FileNotFoundError):
            function(str(tmp_path / "no.yaml"))
