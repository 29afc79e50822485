"""Errors in words, each kind with its causes and its way out; and what is said of a bug, without a secret."""

from __future__ import annotations

import pytest

from specserve.diagnostics import Finding, Severity, Span
from specserve.errors import (
    FactError,
    Interrupted,
    LaunchError,
    ProfileError,
    SpecserveError,
    TrafficError,
    UsageError,
)
from specserve.report.findings import crash, failure

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
            ProfileError("bad", findings=(BAD,), exit_code=1),
            "error[SD005]: unknown key `x`\n --> no.yaml:2:3\n\nerror: bad",
            1,
        ),
        (
            LaunchError("died", causes=("OOM",), log_tail=("a", "b"), log_path="/l", hint="h"),
            "error: died\n  Caused by: OOM\n\n  the log ends with\n    | a\n    | b\n\n  full log: /l\n\nhint: h",
            2,
        ),
        (TrafficError("refused"), "error: refused", 2),
        (Interrupted("stopped", exit_code=143), "error: stopped", 143),
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


@pytest.mark.parametrize("has_trace", [False, True])
def test_what_is_said_of_a_bug_holds_no_value_of_a_secret_variable(
    has_trace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "zz-key-zz")
    monkeypatch.setenv("HF_TOKEN", "hf_zz-token-zz")
    try:
        raise RuntimeError("failed with zz-key-zz and hf_zz-token-zz\udcff")
    except RuntimeError as error:
        said = crash(error, has_trace=has_trace)
    assert "zz-key-zz" not in said and "zz-token-zz" not in said
    assert "$MY_API_KEY" in said and "$HF_TOKEN" in said
    assert ("Traceback" in said) is has_trace is not ("SPECSERVE_DEBUG=1" in said)
