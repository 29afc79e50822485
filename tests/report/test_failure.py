"""Errors in words, each kind with its causes and its way out; and the report of a bug, without a secret."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import (
    CheckFailed,
    FactError,
    Interrupted,
    LaunchError,
    ProfileError,
    SpecserveError,
    TrafficError,
    UsageError,
)
from specserve.report.findings import crash_report, failure

BAD = Finding("SD005", "unknown-key", Severity.ERROR, "unknown key `x`", Span("no.yaml", 2, 3, 2, 4))


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (UsageError("no such thing"), "error: no such thing", 2),
        (UsageError("no such thing", hint="try that"), "error: no such thing\n\nhint: try that", 2),
        (
            FactError("gone", causes=("disk", "power")),
            "error: gone\n  Caused by: disk\n  Caused by: power",
            2,
        ),
        (
            ProfileError("bad", findings=(BAD,)),
            "error[SD005]: unknown key `x`\n --> no.yaml:2:3\n\nerror: bad",
            2,
        ),
        (
            CheckFailed("bad", findings=(BAD,)),
            "error[SD005]: unknown key `x`\n --> no.yaml:2:3\n\nerror: bad",
            1,
        ),
        (
            LaunchError("died", causes=("OOM",), log_tail=("a", "b"), log_path="/l", hint="h"),
            "error: died\n  Caused by: OOM\n\n  the log ends with\n    | a\n    | b\n\n  full log: /l\n\nhint: h",
            2,
        ),
        (TrafficError("refused"), "error: refused", 2),
        (Interrupted("stopped", signal_number=15), "error: stopped", 143),
    ],
)
def test_each_error_says_what_and_why_and_the_way_out(error: SpecserveError, text: str, code: int) -> None:
    assert failure(error) == text
    assert error.exit_code == code


def test_what_comes_from_elsewhere_gives_the_terminal_no_orders() -> None:
    error = LaunchError(
        "a\x1b[2J", causes=("\x1b",), log_tail=("\x07",), log_path="\x9b", hint="\x1b]0;t\x07"
    )
    assert not set(failure(error)) & set("\x1b\x07\x9b")


def crash(error: Exception) -> tuple[str, Path]:
    """What is said of a bug, and the file that it names."""
    try:
        raise error
    except Exception as raised:
        said = crash_report(raised)
    found = re.search(r"`(.+)`", said)
    assert found
    return said, Path(found[1])


def test_a_bug_is_reported_in_a_file_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    said, path = crash(ValueError("boom"))
    assert said.startswith("error: specserve failed in a way it did not expect: ValueError: boom")
    assert "Please report it" in said and "Traceback" not in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text(encoding="utf-8")
    assert "ValueError: boom" in text and "Traceback" in text and "specserve 0" in text


def test_a_bug_report_holds_no_value_of_a_secret_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", "zz-key-zz")
    monkeypatch.setenv("HF_TOKEN", "hf_zz-token-zz")
    said, path = crash(RuntimeError("failed with zz-key-zz and hf_zz-token-zz\udcff"))
    for text in (said, path.read_text(encoding="utf-8")):
        assert "zz-key-zz" not in text and "zz-token-zz" not in text
        assert "$MY_API_KEY" in text and "$HF_TOKEN" in text


def test_a_state_folder_that_cannot_be_written_is_no_second_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "file"))
    assert "SPECSERVE_DEBUG=1 shows where" in crash_report(ValueError("boom"))
