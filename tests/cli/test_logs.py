"""What `specserve logs` prints of a log, whatever is in it."""

from __future__ import annotations

import pytest

from specserve.report.servers import print_log

LINES = ["::error::boo", "  ::set-output name=a::b", "x ##[group]y", "C::D"]


def test_in_a_job_of_github_a_log_gives_no_orders(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    print_log(LINES)
    told = capsys.readouterr().out.splitlines()
    assert told == [r"\:error::boo", r"  \:set-output name=a::b", r"x \#[group]y", "C::D"]
    monkeypatch.delenv("GITHUB_ACTIONS")
    print_log([])
    print_log(LINES)
    assert "::error::boo" in capsys.readouterr().out
