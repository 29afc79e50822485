"""The log without its dress."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.serve.logs import LogLine, LogTail, end_of, parse

LOGS = Path(__file__).parent / "logs"
MESSAGE = "CPU KV cache size: 29,056 tokens, Maximum concurrency for 512 tokens per request: 56.75x"


@pytest.mark.parametrize("name", ["healthy_text", "healthy_colour_and_prefix"])
def test_the_same_message_of_the_engine_is_read_out_of_text_colours_and_prefixes(name: str) -> None:
    assert LogLine(MESSAGE, "EngineCore", "INFO") in parse(end_of(LOGS / f"{name}.log"))


def test_a_progress_bar_that_rewrites_its_line_gives_one_line_per_state() -> None:
    assert [line.text for line in parse("shards: 0%\rshards: 50%\rshards: 100%\n")] == [
        "shards: 0%",
        "shards: 50%",
        "shards: 100%",
    ]


def test_only_bare_lines_and_errors_may_tell_of_a_failure() -> None:
    info, error, bare = parse(
        "(APIServer pid=1) INFO 11-21 01:42:15 [a.py:1] OSError: in an echo\n"
        "(APIServer pid=1) ERROR 11-21 01:42:15 [a.py:1] OSError: real\n"
        "OSError: of a traceback\n"
    )
    assert (info.is_fault, error.is_fault, bare.is_fault) == (False, True, True)
    assert not LogLine('{"levelname": "INFO", "message": "OSError: in an echo"}').is_fault


def test_the_tail_gives_each_whole_line_once_and_waits_for_the_end_of_an_unfinished_one(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    tail = LogTail(log)
    assert tail.read() == []
    log.write_bytes(b"one\ntw")
    assert [line.text for line in tail.read()] == ["one"]
    with log.open("ab") as file:
        file.write(b"o\nthree\n")
    assert [line.text for line in tail.read()] == ["two", "three"]
    assert tail.read() == []


def test_the_end_of_a_long_log_is_read_within_its_limit(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n" * 1000 + "new\n")
    assert end_of(log, limit_bytes=8) == "old\nnew\n"


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_in_any_pieces_give_the_lines_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("log") / "server.log"
    log.touch()
    tail = LogTail(log)
    seen: list[LogLine] = []
    for piece in [*pieces, b"\n"]:
        with log.open("ab") as file:
            file.write(piece)
        seen += tail.read()
    assert seen == parse((b"".join(pieces) + b"\n").decode(errors="replace"))
