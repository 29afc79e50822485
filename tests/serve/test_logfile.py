"""Where logs go, and what the kernel tells about memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specserve.serve.logs import default_log


def test_a_log_is_named_after_the_profile_and_the_time_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path))
    path = default_log("demo")
    assert path.parent == tmp_path / "logs"
    assert re.fullmatch(r"demo-\d{8}-\d{6}\.log", path.name)


def test_two_logs_of_the_same_second_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("time.strftime", lambda _format: "20260131-235959")
    (tmp_path / "logs").mkdir()
    default_log("demo").touch()
    assert default_log("demo").name == "demo-20260131-235959-2.log"
