"""`specserve ask` against a real vLLM server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine
OPTIONS = ("--max-tokens", "48", "--temperature", "0")


def ask(up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specserve", "ask", "--server", up.url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_server_counts_the_acceptance_of_this_request(tiny_server: Up) -> None:
    done = ask(tiny_server, "def fibonacci(n):", *OPTIONS, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["model"], answer["mode"], answer["completion_tokens"]) == ("tiny", "chat", 48)
    assert answer["text"]
    assert answer["last_token_s"] > answer["ttft_s"] > 0
    assert answer["speculates"] and answer["other_requests"] == 0
    found = answer["acceptance"]
    assert found["draft_tokens"] >= found["accepted_tokens"] > 0
    # Every step gives the accepted tokens and one of the target's own; the first token comes from the prompt,
    # and of the last step's tokens those beyond the limit are dropped.
    steps, accepted = found["drafts"], found["accepted_tokens"]
    assert 48 - 1 <= steps + accepted <= 48 + 4


def test_streamed_text_is_the_text(tiny_server: Up) -> None:
    streamed = ask(tiny_server, "def fibonacci(n):", *OPTIONS)
    whole = json.loads(ask(tiny_server, "def fibonacci(n):", *OPTIONS, "--format", "json").stdout)
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout.removesuffix("\n") == whole["text"].removesuffix("\n")
    figures, acceptance = streamed.stderr.splitlines()
    assert figures.startswith("TTFT ")
    assert "48 tokens" in figures
    assert "stopped at the token limit" in figures
    assert acceptance.startswith("acceptance 0.")


def test_a_request_that_the_server_refuses(tiny_server: Up) -> None:
    done = ask(tiny_server, "x", "--max-tokens", "100000")
    assert done.returncode == 2
    assert "does not take this request" in done.stderr
    assert done.stdout == ""
