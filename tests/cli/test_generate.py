"""`specserve generate` as a user meets it, where it ends before an engine starts."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from tests.cli.pair import laid_out

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
    assert '{"prompt": "…"} or {"messages": […]}' in text and '{"custom_id": "…", "body": {…}}' in text
    assert "Without max_tokens, a prompt gets 16 tokens and a chat the rest of the context" in text
    assert "the same command computes only the missing lines" in text
    assert "specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl" in text


def test_profile_and_input_cannot_both_be_stdin() -> None:
    done = generate("-", "-", "-o", "out.jsonl")
    assert done.returncode == 2
    assert b"cannot both be stdin" in done.stderr


def test_the_output_cannot_replace_the_input(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINE)
    done = generate(profile, tmp_path / "in.jsonl", "-o", tmp_path / "." / "in.jsonl")
    assert done.returncode == 2
    assert b"would replace the input" in done.stderr
    assert (tmp_path / "in.jsonl").read_bytes() == LINE


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    done = generate(tmp_path / "none.yaml", "-", "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert b"none.yaml" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.vllm
def test_an_input_that_is_not_there(profile: Path, tmp_path: Path) -> None:
    done = generate(profile, tmp_path / "none.jsonl", "-o", tmp_path / "out.jsonl")
    assert done.returncode == 2
    assert b"cannot read" in done.stderr


@pytest.mark.vllm
def test_a_complete_output_is_kept(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("precious\n")
    done = generate(profile, "-", "-o", tmp_path / "out.jsonl", stdin=LINE)
    assert done.returncode == 2
    assert b"delete it" in done.stderr
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"


@pytest.mark.vllm
def test_lines_that_are_no_requests_need_no_engine(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = generate(profile, "-", "-o", out, stdin=b"[]\n{}\n")
    assert done.returncode == 1
    assert [json.loads(line)["error"] for line in out.read_text().splitlines()] == [
        "line 1: not a JSON object",
        "line 2: one of `prompt` and `messages` is needed",
    ]
    assert b"`frontend` applies only to a server and is ignored here: chat_template" in done.stderr
    assert b"2 lines failed;" in done.stderr


ENGINE = """
import json, sys
def send(**message):
    print(json.dumps(message), flush=True)
inbox = (json.loads(line) for line in sys.stdin)
next(inbox)
send(event="ready", vllm="0.32.0")
for message in inbox:
    if "end" in message:
        break
    index, params = message["index"], message["params"]
    asked = message.get("prompt") or message["messages"][-1]["content"]
    unknown = [name for name in params if name not in ("max_tokens", "temperature", "logprobs")]
    if unknown:
        send(event="refused", index=index, error=f"unknown sampling parameter `{unknown[0]}`")
    else:
        told = " ".join(f"{name}={params[name]}" for name in sorted(params))
        send(event="finished", index=index, text=f"{asked}: {told}", completion_tokens=1)
send(event="done")
"""
"""An engine that answers with what it was asked, and refuses what vLLM has not."""
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


def batch(name: str, body: object) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})


@pytest.fixture
def answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[dict[str, object]]]]:
    """Runs the command on these lines, with that engine."""
    monkeypatch.setattr("specserve.serve.batch.CHILD", (sys.executable, "-c", ENGINE))
    profile = laid_out(tmp_path)
    out = tmp_path / "out.jsonl"

    def run(*lines: str) -> tuple[int, list[dict[str, object]]]:
        (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
        code = _run(["generate", str(profile), str(tmp_path / "in.jsonl"), "-o", str(out)])
        return code, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    return run


@pytest.mark.vllm
def test_lines_of_openais_batch_api_are_answered_under_their_custom_ids(
    answered: Callable[..., tuple[int, list[dict[str, object]]]],
) -> None:
    code, records = answered(
        batch("chat", {"model": "gpt-4o", "messages": CHAT, "max_completion_tokens": 9, "stream": False}),
        batch("text", {"model": "m", "prompt": "p", "max_tokens": 5, "temperature": 0.5, "stop": None}),
        batch("string", json.dumps({"prompt": "q", "user": "u"})),
        batch("logprobs", {"messages": CHAT, "logprobs": True, "top_logprobs": 3}),
        batch("none", {"messages": CHAT, "logprobs": False}),
        batch("unknown", {"model": "m", "prompt": "p", "temprature": 1}),
        batch("embedding", {"model": "m", "input": "p"}),
        json.dumps({"id": 7, "prompt": "plain", "max_tokens": 2}),
    )
    assert code == 1
    texts = {record.get("custom_id", record.get("id")): record.get("text") for record in records}
    assert texts == {
        "chat": "hi: max_tokens=9",
        "text": "p: max_tokens=5 temperature=0.5",
        "string": "q: ",
        "logprobs": "hi: logprobs=3",
        "none": "hi: ",
        "unknown": None,
        "embedding": None,
        7: "plain: max_tokens=2",
    }
    assert list(records[0]) == ["custom_id", "index", "text", "completion_tokens"]
    assert [record["error"] for record in records if "error" in record] == [
        "line 6: unknown sampling parameter `temprature`",
        "line 7: one of `prompt` and `messages` is needed",
    ]


@pytest.mark.vllm
def test_an_interrupted_batch_is_resumed_by_its_lines(
    answered: Callable[..., tuple[int, list[dict[str, object]]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dying = ENGINE.replace("    if unknown:", "    if asked == 'die': sys.exit(1)\n    if unknown:")
    lines = [batch(name, {"prompt": name}) for name in ("a", "b", "die", "c")]
    with monkeypatch.context() as patch:
        patch.setattr("specserve.serve.batch.CHILD", (sys.executable, "-c", dying))
        assert answered(*lines) == (2, [])
    with contextlib.closing(sqlite3.connect(tmp_path / "out.jsonl.partial")) as base:
        partial = [json.loads(record) for (record,) in base.execute("SELECT record FROM done")]
    assert [record["custom_id"] for record in partial] == ["a", "b"]
    code, records = answered(*lines)
    assert (code, [record["custom_id"] for record in records]) == (0, ["a", "b", "die", "c"])
