"""How the children in vLLM's interpreter are spoken to. Needs no vLLM: what would import it is replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from specserve.engine.jsonlines import error_text

ECHO = """
from specserve.engine.jsonlines import JsonLines
lines = JsonLines()
print("from a library")
for message in lines.read():
    lines.send("echo", message=message, stdin=open(0, closefd=False).read())
"""
DRIVER = """
import asyncio, sys
from specserve.engine import benchmark_driver
from specserve.engine.jsonlines import run_child
async def run_pass(lines, wanted):
    if wanted["pass"] == "bad":
        raise ValueError("no such\\nendpoint")
    lines.send("pass", **{"pass": wanted["pass"]})
benchmark_driver.listen_along = lambda: None
benchmark_driver.run_pass = run_pass
sys.exit(run_child(lambda lines: asyncio.run(benchmark_driver.drive(lines))))
"""


def answers(child: str, *pieces: bytes) -> tuple[list[dict[str, Any]], str]:
    """What a child answers to input that comes in pieces, and what is on its stderr."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for piece in pieces:
            process.stdin.write(piece)
            process.stdin.flush()
        process.stdin.close()
        out, err = process.stdout.read(), process.stderr.read().decode()
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def test_messages_in_any_pieces_are_read_and_what_libraries_print_is_no_answer() -> None:
    found, err = answers(ECHO, b'{"index": 1}\n{"ind', b'ex": 2}\n', b'{"cut off')
    assert [message["message"] for message in found] == [{"index": 1}, {"index": 2}]
    assert {message["stdin"] for message in found} == {""}  # a forked engine must not read the requests
    assert err == "from a library\n"


def test_a_pass_that_cannot_be_done_does_not_end_the_others() -> None:
    found, _ = answers(DRIVER, b'{"pass": "bad"}\n', b'{"pass": "good"}\n')
    assert found == [
        {"event": "ready"},
        {"event": "failed", "pass": "bad", "error": "ValueError: no such endpoint"},
        {"event": "pass", "pass": "good"},
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("two\n  lines"), "two lines"), (KeyError(), "KeyError"), ("x" * 601, "x" * 600 + "…")],
)
def test_an_error_is_one_line_of_bounded_length(error: BaseException | str, text: str) -> None:
    assert error_text(error) == text
