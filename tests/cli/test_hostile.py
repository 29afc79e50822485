"""A server that sends too much, too slowly or something else: a clear error in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hostile_server import hostile

from specserve.cli.app import _run

Captured = pytest.CaptureFixture[str]
MOST_RSS_KB = 300 * 1024


def arguments(command: str, url: str) -> list[str]:
    return {
        "ask": ["ask", "hi", "--server", url],
        "verify": ["verify", url],
        "bench": ["bench", url, "--with", f"again={url}"],
        "watch": ["watch", url, "--once", "--window", "1s"],
    }[command]


ABOUT = {
    "endless": "is larger than",
    "endless chunks": "is larger than 16 MiB",
    "gzip": "is compressed",
    "error": "is larger than 16 MiB",
    "drip": "does not end",
}


FIRST = ("endless chunks", "error", "drip", "headers", "header", "status", "chunk extension", "depth")


def place(command: str) -> str:
    return "/metrics" if command == "watch" else "/v1/models"


MEASURED = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_maxrss, flush=True)
os._exit(os.waitstatus_to_exitcode(status))
"""
"""Prints the peak of a command's memory: a child of the tests themselves would begin with theirs."""


@pytest.mark.parametrize(
    ("attack", "command"),
    [
        *((attack, "ask") for attack in ("gzip", "objects")),
        ("endless", "bench"),
    ],
)
def test_a_flood_costs_little_memory(attack: str, command: str) -> None:
    with hostile(attack) as url:
        words = [sys.executable, "-c", MEASURED, sys.executable, "-m", "specserve", *arguments(command, url)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said, _, peak_kb = " ".join(done.stdout.decode().split()).rpartition(" ")
    assert done.returncode == 2, said
    if attack in ABOUT:
        assert f"the answer of {url}{place(command)} {ABOUT[attack]}" in said
    assert url in said and "Traceback" not in said
    assert int(peak_kb) < MOST_RSS_KB


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Short for what drips; elsewhere the bytes decide, however slow the machine is."""
    attack = request.node.callspec.params.get("attack", "")
    for name in ("_SHORT_S", "_ANSWER_S"):
        monkeypatch.setattr(f"specserve.serve.client.{name}", 0.5 if "drip" in attack else 600.0)
    monkeypatch.setattr("specserve.serve.client._PATIENCE", 0.2)


def said_of(command: list[str], capsys: Captured) -> str:
    assert _run(command) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("attack", "command"),
    [*((attack, command) for attack in FIRST for command in ("ask", "watch")), ("drip", "bench")],
)
def test_no_answer_to_the_first_request_hangs(attack: str, command: str, capsys: Captured) -> None:
    with hostile(attack) as url:
        said = said_of(arguments(command, url), capsys)
    assert url in said
    if attack in ABOUT:
        assert f"the answer of {url}{place(command)} {ABOUT[attack]}" in said


@pytest.mark.parametrize(
    ("attack", "about"),
    [
        ("stream", "is larger than 64 MiB"),
        ("stream gzip", "is compressed"),
        ("stream drip", "does not end: "),
        ("error", "is larger than 64 MiB"),
    ],
)
def test_no_stream_of_an_answer_is_without_end(attack: str, about: str, capsys: Captured) -> None:
    with hostile(attack, only_posts=True) as url:
        said = said_of(["ask", "hi", "--server", url, "--format", "json"], capsys)
        assert f"the answer of {url}/v1/chat/completions {about}" in said


@pytest.mark.parametrize("attack", ["endless", "gzip", "drip"])
def test_no_answer_to_a_later_request_is_without_end(attack: str, capsys: Captured) -> None:
    with hostile(attack, only_posts=True) as url:
        said = said_of(arguments("verify", url), capsys)
        assert f"the answer of {url}/v1/" in said and ABOUT[attack] in said


@pytest.mark.parametrize(
    ("command", "only_posts"),
    [("ask", False), ("bench", False), ("watch", False), ("ask", True), ("verify", True)],
)
def test_a_redirect_is_not_followed(command: str, only_posts: bool, capsys: Captured) -> None:
    paths: list[str] = []
    with hostile("endless", paths=paths) as other, hostile("", only_posts=only_posts, elsewhere=other) as url:
        said = said_of(arguments(command, url), capsys)
    assert f"{url} redirects (307)" in said
    assert paths == []
