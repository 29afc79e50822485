"""The two streams, and what may be written to them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.report.console import LiveLine, mute, out, say, wrapped
from tests.report.conftest import Terminal


@given(st.lists(st.text("ab`-,.", min_size=1, max_size=30), min_size=1).map(" ".join))
def test_in_a_pipe_long_text_is_broken_at_blanks_and_loses_nothing(text: str) -> None:
    lines = wrapped(text, lead="  = note: ", stream=io.StringIO()).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("  = note: ") and all(line.startswith(" " * 10) for line in lines[1:])
    assert " ".join(line[10:] for line in lines) == text


def test_on_a_terminal_text_is_broken_at_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = wrapped("word " * 40, lead="- ", stream=Terminal()).split("\n")
    assert len(lines) == 3 and 90 < max(map(len, lines)) <= 100


@pytest.mark.parametrize("write", [out, say])
def test_a_live_line_is_gone_before_anything_else_is_written(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with LiveLine() as line:
        line.show("stopping the servers")
        write("the budget was used up")
        write("more")
    erased = "\r\x1b[K"
    assert terminal.getvalue().startswith(
        f"{erased}stopping the servers{erased}the budget was used up\nmore\n"
    )


def test_a_stream_whose_reader_has_gone_can_be_muted() -> None:
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as stream:
        stream.write("lost")
        mute(stream)
        stream.flush()
