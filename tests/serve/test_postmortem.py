"""Why a server ended, beyond its log."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.serve import causes
from specserve.serve.events import Phase


def test_a_full_disk_under_the_log_is_the_cause_where_the_log_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "v.log"
    log.write_text("INFO 11-21 01:44:37 [a.py:1] as usual\n")
    plain = causes.died(log, Phase.ENGINE, exit_code=1, after_s=54)
    assert plain.message == "vLLM exited with code 1 after 54s, while starting the engine"
    assert plain.log_tail == ("as usual",)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    full = causes.died(log, Phase.ENGINE, exit_code=1, after_s=54)
    assert full.causes == ("the disk of the log is full, and vLLM ends or hangs if it cannot write",)
    assert full.hint == f"make room in {tmp_path}, or set SPECSERVE_STATE_DIR to another folder"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    known = causes.died(log, Phase.ENGINE, exit_code=1)
    assert "Address already in use" in known.causes[0]


def test_an_end_that_nobody_saw_is_told_as_that(tmp_path: Path) -> None:
    error = causes.died(tmp_path / "no.log", Phase.SERVING, exit_code=None)
    assert error.message == "vLLM is gone, and how it ended is not known, while serving"
