"""Where logs go, and what the kernel tells about memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specserve.serve import process
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


def test_kills_for_memory_are_summed_over_host_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vmstat").write_text("pgfault 7\noom_kill 2\n")
    (tmp_path / "events").write_text("low 0\noom 9\noom_kill 1\noom_group_kill 5\n")
    monkeypatch.setattr(
        process, "_COUNTERS", (tmp_path / "vmstat", tmp_path / "events", tmp_path / "missing")
    )
    assert process.count_oom_kills() == 3
