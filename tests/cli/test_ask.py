"""`specserve ask` as a user meets it: a process with two streams and an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from openai_server import Script, serving


def ask(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "specserve", "ask", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, "TERM": "dumb", **(env or {})},
        check=False,
        timeout=60,
    )


def test_the_text_goes_to_stdout_and_the_figures_to_stderr() -> None:
    with serving(Script()) as url:
        done = ask("def f", "--server", url)
    assert done.returncode == 0
    assert done.stdout == b"def f():\n    pass\n"
    talk = done.stderr.decode().splitlines()
    assert talk[0].startswith("TTFT ")
    assert ", 9 tokens, " in talk[0]
    assert talk[0].endswith(" tokens/s")
    assert talk[1] == "acceptance 0.50, mean acceptance length 3.00, per position 0.80"
    assert len(talk) == 2


def test_requests_of_others_are_said() -> None:
    with serving(Script(other_requests=2)) as url:
        done = ask("hi", "--server", url)
    assert b"(2 other requests ran: acceptance is the server's)" in done.stderr


def test_no_speculation_is_said() -> None:
    with serving(Script(speculates=False)) as url:
        assert ask("hi", "--server", url).stderr.decode().splitlines()[1] == "no speculation"


def test_a_completion_instead_of_a_chat_is_said() -> None:
    with serving(Script(has_template=False)) as url:
        done = ask("hi", "--server", url)
    assert done.returncode == 0
    assert b"`demo` has no chat template, so it continued the text" in done.stderr


def test_without_an_address_the_server_that_is_asked_is_named(tmp_path: Path) -> None:
    done = ask("hi", env={"SPECSERVE_STATE_DIR": str(tmp_path)})
    assert done.stderr.decode().splitlines()[0] == "asking the server at http://127.0.0.1:8000"


def test_the_prompt_may_come_from_stdin_byte_for_byte() -> None:
    script = Script(has_template=False)
    with serving(script) as url:
        assert ask("-", "--server", url, stdin="def ü():\n".encode()).returncode == 0
        assert ask("--server", url, stdin=b"two").returncode == 0
    assert [request["prompt"] for request in script.requests if "prompt" in request] == ["def ü():\n", "two"]


def test_json_is_one_object_for_scripts() -> None:
    with serving(Script(pieces=("\x1b[2J", "ü"), reasoning=("hm",))) as url:
        done = ask("hi", "--server", url, "--format", "json")
    assert b"\x1b" not in done.stdout
    body = json.loads(done.stdout)
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
    assert done.stderr == b""


ATTACK = "\x1b]0;title\x07\x1b[2J\x9b31m\u202eabc\r"


@pytest.mark.parametrize("pieces", [(ATTACK,), tuple(ATTACK)], ids=["whole", "split across chunks"])
def test_a_server_cannot_order_the_terminal_about(pieces: tuple[str, ...]) -> None:
    with serving(Script(pieces=pieces, reasoning=pieces)) as url:
        done = ask("hi", "--server", url)
    assert done.returncode == 0
    for stream in (done.stdout.decode(), done.stderr.decode()):
        assert "\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\x202eabc\\x0d\n" in stream
        assert not set(stream) & set("\x1b\x07\x9b\u202e\r")


def test_text_that_the_terminal_cannot_show_is_replaced() -> None:
    with serving(Script(pieces=("\ud83d", "ü→"))) as url:
        done = ask("hi", "--server", url, env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert done.stdout == b"?\xfc?\n"


def test_nothing_listens() -> None:
    done = ask("hi", "--server", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"nothing listens at http://127.0.0.1:9" in done.stderr
    assert b"specserve up" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hi", "--server", "ftp://x"), b"not an http URL"),
        (("hi", "--max-tokens", "0"), b"--max-tokens"),
        ((""), b"the prompt is empty"),
        (("-"), b"the prompt is empty"),
        (
            ("hi", "--server", "http://no-such-host.invalid"),
            b"cannot reach http://no-such-host.invalid",
        ),
        (("hi", "--temperature", "-1"), b"--temperature"),
    ],
)
def test_a_wrong_option_is_named(arguments: tuple[str, ...], message: bytes) -> None:
    done = ask(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_prompt_that_is_no_text() -> None:
    done = ask("-", stdin=b"\xff\xfe")
    assert done.returncode == 2
    assert b"the prompt is not UTF-8" in done.stderr


def test_a_server_that_breaks_off_leaves_the_text_and_an_error() -> None:
    with serving(Script(breaks="cut")) as url:
        done = ask("hi", "--server", url)
    assert done.returncode == 2
    assert done.stdout == b"def f():\n    pass\n"
    assert b"sent an invalid answer" in done.stderr


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
        time.sleep(
            0.5
        )  # a signal in the few instructions before Python waits for more is seen only after the wait
        process.send_signal(signal.SIGINT)
        rest, talk = process.communicate(timeout=30)
        release.set()
    assert process.returncode == 130
    assert first + rest == b"def \n"
    assert b"interrupted" in talk
    assert b"Traceback" not in talk


def test_the_key_comes_from_the_named_variable_alone() -> None:
    leak = {"OPENAI_API_KEY": "leak", "OPENAI_ORG_ID": "leak", "OPENAI_BASE_URL": "http://127.0.0.1:9/leak"}
    script = Script(key="s3cret")
    with serving(script) as url:
        refused = ask("hi", "--server", url, env=leak)
        done = ask("hi", "--server", url, env={**leak, "VLLM_API_KEY": "s3cret"})
    assert (refused.returncode, done.returncode) == (2, 0)
    assert b"VLLM_API_KEY" in refused.stderr
    assert b"s3cret" not in done.stdout + done.stderr
    assert not [header for header in script.headers if "leak" in str(header)]


def test_an_answer_stops_at_256_tokens_unless_more_is_asked_for() -> None:
    script = Script()
    with serving(script) as url:
        ask("hi", "--server", url)
        ask("hi", "--max-tokens", "2", "--server", url)
    assert [body["max_tokens"] for body in script.requests] == [256, 2]
