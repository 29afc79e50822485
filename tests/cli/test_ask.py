"""`specserve ask` as a user meets it: two streams and an exit code."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from openai_server import Script, serving

from specserve.cli.app import _run

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs the command: its exit code, stdout and stderr."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        piped = SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False)
        monkeypatch.setattr(sys, "stdin", piped)
        code = _run(["ask", *arguments])
        stdout, stderr = capsys.readouterr()
        assert "Traceback" not in stderr
        return code, stdout, stderr

    return run


def test_the_text_goes_to_stdout_and_the_figures_to_stderr(ask: Ask) -> None:
    with serving(Script()) as url:
        code, text, talk = ask("def f", "--server", url)
    assert (code, text) == (0, "def f():\n    pass\n")
    speed, speculation = talk.splitlines()
    assert speed.startswith("TTFT ") and ", 9 tokens, " in speed and speed.endswith(" tokens/s")
    assert speculation == "acceptance 0.50, mean acceptance length 3.00, per position 0.80"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(other_requests=2), "(2 other requests ran: acceptance is the server's)"),
        (Script(speculates=False), "no speculation"),
        (Script(has_template=False), "`demo` has no chat template, so it continued the text"),
    ],
)
def test_what_is_special_about_an_answer_is_said(ask: Ask, script: Script, said: str) -> None:
    with serving(script) as url:
        code, _, talk = ask("hi", "--server", url)
    assert code == 0 and said in talk


def test_without_an_address_the_server_that_is_asked_is_named(ask: Ask) -> None:
    assert ask("hi")[2].splitlines()[0] == "asking the server at http://127.0.0.1:8000"


def test_the_prompt_may_come_from_stdin_byte_for_byte_and_an_answer_has_256_tokens(ask: Ask) -> None:
    script = Script(has_template=False)
    with serving(script) as url:
        assert ask("-", "--server", url, stdin="def ü():\n".encode())[0] == 0
        assert ask("--server", url, "--max-tokens", "2", stdin=b"two")[0] == 0
    asked = [(body["prompt"], body["max_tokens"]) for body in script.requests if "prompt" in body]
    assert asked == [("def ü():\n", 256), ("two", 2)]


def test_json_is_one_object_for_scripts(ask: Ask) -> None:
    with serving(Script(pieces=("\x1b[2J", "ü"), reasoning=("hm",))) as url:
        _, text, talk = ask("hi", "--server", url, "--format", "json")
    assert "\x1b" not in text and talk == ""
    body = json.loads(text)
    assert body.pop("last_token_s") > body.pop("ttft_s") > 0
    assert body == {
        "version": 1,
        "url": url,
        "model": "demo",
        "mode": "chat",
        "text": "\x1b[2Jü",
        "reasoning": "hm",
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "speculates": True,
        "acceptance": {
            "drafts": 10,
            "draft_tokens": 40,
            "accepted_tokens": 20,
            "accepted_per_position": [8],
        },
        "other_requests": 0,
    }


def test_text_that_the_terminal_cannot_show_is_replaced() -> None:
    with serving(Script(pieces=("\ud83d", "ü→"))) as url:
        command = [sys.executable, "-m", "specserve", "ask", "hi", "--server", url]
        env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
        done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"?\xfc?\n")


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("hi", "--server", "ftp://x"), b"", "not an http URL"),
        (("hi", "--max-tokens", "0"), b"", "--max-tokens"),
        (("hi", "--temperature", "-1"), b"", "--temperature"),
        ((), b"", "the prompt is empty"),
        (("-",), b"", "the prompt is empty"),
        (("-",), b"\xff\xfe", "the prompt is not UTF-8"),
        (("hi", "--server", "http://no-such-host.invalid"), b"", "cannot reach http://no-such-host.invalid"),
        (("hi", "--server", "http://127.0.0.1:9"), b"", "nothing listens at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_asked_is_named(
    ask: Ask, arguments: tuple[str, ...], stdin: bytes, message: str
) -> None:
    code, text, talk = ask(*arguments, stdin=stdin)
    assert (code, text) == (2, "") and message in talk


def test_a_server_that_breaks_off_leaves_the_text_and_an_error(ask: Ask) -> None:
    with serving(Script(breaks="cut")) as url:
        code, text, talk = ask("hi", "--server", url)
    assert (code, text) == (2, "def f():\n    pass\n") and "sent an invalid answer" in talk


def test_ctrl_c_keeps_the_text_and_ends_with_130() -> None:
    sent, release = threading.Event(), threading.Event()

    def during(number: int) -> None:
        if number == 1:
            sent.set()
            release.wait(30)

    with serving(Script(during=during)) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "specserve", "ask", "hi", "--server", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert sent.wait(30)
        first = process.stdout.read(4)
        time.sleep(0.5)  # a signal in the few instructions before Python waits is seen only after the wait
        process.send_signal(signal.SIGINT)
        rest, talk = process.communicate(timeout=30)
        release.set()
    assert process.returncode == 130
    assert first + rest == b"def \n"
    assert b"interrupted" in talk
    assert b"Traceback" not in talk
