"""The bytes of profiles: from disk, stdin or whoever stands in for a file; no more than a profile may have."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.profile import texts
from specserve.profile.source import MAX_BYTES


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_KEPT", {})


def test_stdin_is_read_once_and_can_be_recalled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts.recall("-") == b""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a: 1")))
    assert texts.read("-") == b"a: 1"
    assert texts.recall("-") == texts.recall("-") == b"a: 1"


def test_what_is_kept_stands_in_for_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"on disk")
    texts.keep(str(file), b"in the editor")
    assert texts.read(str(file)) == texts.recall(str(file)) == b"in the editor"


def test_a_reader_stands_in_while_it_lasts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"now")
    with texts.read_by(lambda name: b"then: " + name.encode()):
        assert texts.read("p.yaml") == b"then: p.yaml"
        assert texts.recall(str(file)) == b"now"
    assert texts.read(str(file)) == b"now"


def test_of_a_file_without_end_only_so_much_is_read() -> None:
    assert len(texts.read("/dev/zero")) == len(texts.recall("/dev/zero")) == MAX_BYTES + 1


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    for function in (texts.read, texts.recall):
        with pytest.raises(FileNotFoundError):
            function(str(tmp_path / "no.yaml"))
