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
from specserve.report.findings import failure

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
