"""`specserve generate` as a user meets it, where it ends before an engine starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINE = b'{"prompt": "a"}\n'


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text("target: {model: some/model}\nfrontend: {chat_template: ./t.jinja}\n")
    return path


def generate(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specserve", "generate", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ, "TERM": "dumb"},
        check=False,
        timeout=60,
    )


def test_the_help_says_what_a_line_is_and_what_is_applied() -> None:
    done = generate("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.decode().split())
    assert '{"prompt": "…"} or {"messages": […]}' in text
    assert "Without max_tokens, a prompt gets 16 tokens and a chat the rest of the context" in text
    assert "Each finished line is appended at once to OUT.jsonl.partial" in text
    assert "the same command computes only the missing lines" in text
    assert "specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl" in text


def test_profile_and_input_cannot_both_be_stdin() -> None:
    done = generate("-", "-")
    assert done.returncode == 2
    assert b"cannot both be stdin" in done.stderr


def test_the_output_cannot_replace_the_input(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINE)
    done = generate(profile, tmp_path / "in.jsonl", "-o", tmp_path / "." / "in.jsonl", "--overwrite")
    assert done.returncode == 2
    assert b"would replace the input" in done.stderr
    assert (tmp_path / "in.jsonl").read_bytes() == LINE


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    done = generate(tmp_path / "none.yaml", "-")
    assert done.returncode == 2
    assert b"none.yaml" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.vllm
def test_an_input_that_is_not_there(profile: Path, tmp_path: Path) -> None:
    done = generate(profile, tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert b"cannot read" in done.stderr


@pytest.mark.vllm
def test_a_complete_output_is_kept(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("precious\n")
    done = generate(profile, "-", "-o", tmp_path / "out.jsonl", stdin=LINE)
    assert done.returncode == 2
    assert b"--overwrite" in done.stderr
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"


@pytest.mark.vllm
def test_lines_that_are_no_requests_need_no_engine(profile: Path) -> None:
    done = generate(profile, "-", stdin=b"[]\n{}\n")
    assert done.returncode == 1
    assert [json.loads(line)["error"] for line in done.stdout.splitlines()] == [
        "line 1: not a JSON object",
        "line 2: one of `prompt` and `messages` is needed",
    ]
    assert b"`frontend` applies only to a server and is ignored here: chat_template" in done.stderr
    assert b"2 lines failed:" in done.stderr
