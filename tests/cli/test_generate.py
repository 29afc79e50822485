"""`specserve generate`: what is written, what is said, and what is left when it is stopped.

The engine here is a script that speaks the protocol: it upper-cases prompts, tells the parameters that it was given,
and does on demand what a real engine does only by accident. The real one runs in tests/engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.cli.app import _run
from specserve.cli.ask import generate_file
from specserve.errors import Interrupted, LaunchError, UsageError
from specserve.plan.launchplan import LaunchPlan
from tests.cli.pair import laid_out

Captured = pytest.CaptureFixture[str]
ENGINE = """
import json, os, signal, sqlite3, sys, time
def written():
    base = sqlite3.connect("file:" + os.environ["PARTIAL"] + "?immutable=1", uri=True)
    return base.execute("SELECT count(*) FROM done").fetchone()[0]
def send(**message):
    print(json.dumps(message), flush=True)
inbox = (json.loads(line) for line in sys.stdin)
next(inbox)
send(event="ready", vllm="0.32.0", max_num_seqs=8, defaults={})
slow = 0
for message in inbox:
    if "end" in message:
        break
    index, params = message["index"], message["params"]
    prompt = message.get("prompt") or message["messages"][-1]["content"]
    once = os.environ.get("ONCE", "")
    with open(os.environ.get("ASKED", os.devnull), "a") as asked:
        asked.write(f"{prompt} ")
    if prompt == "slow" and not os.path.exists(once):
        slow += 1
        continue
    if prompt in ("interrupt", "terminate", "die") and not os.path.exists(once):
        open(once, "w").close()
        while written() < index - slow:  # all answers are written
            time.sleep(0.01)
        if prompt == "die":
            print("torch.OutOfMemoryError: no room", file=sys.stderr, flush=True)
            os._exit(1)
        os.kill(os.getppid(), signal.SIGINT if prompt == "interrupt" else signal.SIGTERM)
        time.sleep(60)
    if prompt == "too long":
        send(event="refused", index=index, error="the prompt is too long \\x1b[31m")
    elif "temprature" in params:
        send(event="refused", index=index, error="unknown sampling parameter `temprature`")
    else:
        text = " ".join([prompt.upper(), *(f"{name}={params[name]}" for name in sorted(params))])
        send(event="finished", index=index, text=text, finish_reason="stop", prompt_tokens=1, completion_tokens=2)
send(event="done")
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("specserve.serve.process._LAST_WORDS_S", 0.5)
    monkeypatch.setattr("specserve.serve.batch.CHILD", (sys.executable, "-c", ENGINE))
    env = {
        "ONCE": str(tmp_path / "once"),
        "ASKED": str(tmp_path / "state" / "asked"),
        "PARTIAL": str(tmp_path / "out.jsonl.partial"),
    }
    return LaunchPlan(
        name="demo", fingerprint="f", vllm="0.32.0", platform="cpu", argv=("vllm",), env=env,
        engine_kwargs={"model": "m"}, host="127.0.0.1", port=0, model="m", stall_timeout_s=60.0,
        shutdown_timeout_s=10.0,
    )  # fmt: skip


SHUFFLING = """
import json, os, random, select, sys
def send(**message):
    print(json.dumps(message), flush=True)
held, unread, limit, is_ended = [], b"", int(os.environ["LIMIT"]), False
while True:
    if select.select([0], [], [], 0.002)[0]:
        read = os.read(0, 1 << 16)
        *whole, unread = (unread + read).split(b"\\n")
        for message in map(json.loads, whole):
            if "engine_kwargs" in message:
                send(event="ready", vllm="0.32.0", max_num_seqs=8, defaults={})
            elif "end" in message:
                is_ended = True
            else:
                held.append(message["index"])
                with open(os.environ["ASKED"], "a") as asked:
                    asked.write(f"{message['index']} ")
        if not read:
            break
    elif held and limit > 0:
        limit -= 1
        send(event="finished", index=(index := held.pop(random.randrange(len(held)))), text=f"text {index}",
             finish_reason="stop", prompt_tokens=1, completion_tokens=1)
    elif is_ended and not held:
        send(event="done")
        is_ended = False
"""
"""An engine that finishes its requests in any order, and stops after LIMIT of them."""


def lines(*prompts: str) -> bytes:
    return b"".join(json.dumps({"id": prompt, "prompt": prompt}).encode() + b"\n" for prompt in prompts)


def run(plan: LaunchPlan, data: bytes, path: Path) -> int:
    return generate_file(plan, data=data, path=path)


def texts(path: Path) -> list[str | None]:
    return [json.loads(line).get("text") for line in path.read_text().splitlines()]


def test_answers_are_written_in_order_and_summed_up(
    plan: LaunchPlan, tmp_path: Path, capfd: Captured
) -> None:
    path = tmp_path / "out.jsonl"
    assert run(plan, lines("a", "b", "c"), path) == 0
    assert texts(path) == ["A", "B", "C"]
    out, talk = capfd.readouterr()
    assert out == ""
    assert "the engine is ready after" in talk
    assert "(vLLM 0.32.0)" in talk
    assert "6 tokens in" in talk
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.jsonl", "state"]


def test_bad_lines_are_listed_with_their_numbers_and_cost_nothing_else(
    plan: LaunchPlan, tmp_path: Path, capfd: Captured
) -> None:
    path = tmp_path / "out.jsonl"
    data = lines("a") + b"{oops\n" + lines("too long", "b")
    assert run(plan, data, path) == 2
    assert texts(path) == ["A", None, None, "B"]
    talk = capfd.readouterr().err
    assert "2 lines failed;" in talk
    assert "  line 2: invalid JSON" in talk
    assert "  line 3: the prompt is too long \\x1b[31m" in talk
    assert "\x1b" not in talk


@pytest.mark.parametrize(("prompt", "code"), [("interrupt", 130), ("terminate", 143)])
def test_a_stopped_run_goes_on_where_it_stopped(
    plan: LaunchPlan, tmp_path: Path, capfd: Captured, prompt: str, code: int
) -> None:
    path = tmp_path / "out.jsonl"
    data = lines("a", "too long", prompt, "b")
    with pytest.raises(Interrupted, match=r"stopped: 2 of 4 lines are in `.*out.jsonl.partial`") as stop:
        run(plan, data, path)
    assert stop.value.exit_code == code
    assert not path.exists()
    assert run(plan, data, path) == 1  # the line that failed before is still counted
    assert texts(path) == ["A", None, prompt.upper(), "B"]
    assert "resuming: 2 of 4 lines are already done" in capfd.readouterr().err


@pytest.mark.parametrize("prompt", ["interrupt", "die"])
def test_finished_lines_do_not_wait_for_a_slower_line_before_them(
    plan: LaunchPlan, tmp_path: Path, capfd: Captured, prompt: str
) -> None:
    path = tmp_path / "out.jsonl"
    data = lines("slow", "a", "b", "c", prompt, "d")
    with pytest.raises(Interrupted if prompt == "interrupt" else LaunchError) as stop:
        run(plan, data, path)
    if isinstance(stop.value, LaunchError):
        assert "while generating" in stop.value.message and stop.value.log_path is not None
        assert Path(stop.value.log_path).read_text() == "torch.OutOfMemoryError: no room\n"
    told = str(stop.value) if prompt == "interrupt" else capfd.readouterr().err
    assert f"3 of 6 lines are in `{path}.partial`; the same command resumes there" in told
    assert [each["text"] for each in journal(tmp_path / "out.jsonl.partial").values()] == ["A", "B", "C"]
    asked = tmp_path / "state" / "asked"
    asked.write_text("")
    assert run(plan, data, path) == 0
    assert asked.read_text().split() == ["slow", prompt, "d"]
    assert texts(path) == ["SLOW", "A", "B", "C", prompt.upper(), "D"]


def test_another_engine_does_not_go_on_with_the_answers_of_this_one(plan: LaunchPlan, tmp_path: Path) -> None:
    data = lines("a", "interrupt")
    with pytest.raises(Interrupted):
        run(plan, data, tmp_path / "out.jsonl")
    other = LaunchPlan(
        **{name: getattr(plan, name) for name in plan.__slots__} | {"engine_kwargs": {"model": "n"}}
    )
    with pytest.raises(UsageError, match="another input, profile"):
        run(other, data, tmp_path / "out.jsonl")


@pytest.mark.parametrize("seed", range(2))
def test_runs_killed_at_five_moments_lose_no_line_and_compute_none_again(
    plan: LaunchPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("specserve.serve.batch.CHILD", (sys.executable, "-c", SHUFFLING))
    path, partial, asked = (
        tmp_path / "out.jsonl",
        tmp_path / "out.jsonl.partial",
        tmp_path / "state" / "asked",
    )
    data = lines(*(f"prompt {number}" for number in range(60)))
    journaled: dict[int, dict[str, object]] = {}
    for moment in sorted(random.Random(seed).sample(range(60), 5)):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                run(limited(plan, moment - len(journaled)), data, path)
            os._exit(0)
        while len(journal(partial)) < moment:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it has not ended by itself
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        before, journaled = journaled, journal(partial)
        assert before.items() <= journaled.items()
        assert not asked_again(asked, before)
    assert run(limited(plan, 60), data, path) == 0
    assert not asked_again(asked, journaled)
    assert texts(path) == [f"text {number}" for number in range(60)]


def journal(partial: Path) -> dict[int, dict[str, object]]:
    """The records of a run that goes on or was killed, by line; its lock is passed over."""
    with contextlib.suppress(sqlite3.Error):
        base = sqlite3.connect(f"file:{partial}?immutable=1", uri=True)
        with contextlib.closing(base):
            return {line: json.loads(record) for line, record in base.execute("SELECT * FROM done")}
    return {}


def limited(plan: LaunchPlan, limit: int) -> LaunchPlan:
    return dataclasses.replace(plan, env={**plan.env, "LIMIT": str(limit)})


def asked_again(asked: Path, journaled: dict[int, dict[str, object]]) -> set[int]:
    """The journaled lines that the last run's engine was asked; forgets what it was asked."""
    again = (
        journaled.keys() & {int(index) for index in asked.read_text().split()} if asked.exists() else set()
    )
    asked.unlink(missing_ok=True)
    return again


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("specserve.serve.batch.CHILD", ("/no/such/engine",))
    path = tmp_path / "p.yaml"
    path.write_text("target: {model: some/model}\nfrontend: {chat_template: ./t.jinja}\n")
    return path


def generate(*arguments: object, stdin: bytes = b"") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
        return _run(["generate", *map(str, arguments)])


def test_what_would_be_lost_or_mixed_up_is_refused(profile: Path, tmp_path: Path, capsys: Captured) -> None:
    assert generate("-", "-", "-o", "out.jsonl") == 2
    assert "cannot both be stdin" in capsys.readouterr().err
    (tmp_path / "in.jsonl").write_text("{}\n")
    assert generate(profile, tmp_path / "in.jsonl", "-o", tmp_path / "." / "in.jsonl") == 2
    assert "would replace the input" in capsys.readouterr().err
    assert (tmp_path / "in.jsonl").read_text() == "{}\n"


@pytest.mark.vllm
def test_an_input_that_is_not_there_and_a_complete_output_are_told(
    profile: Path, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "out.jsonl").write_text("precious\n")
    assert generate(profile, "-", "-o", tmp_path / "out.jsonl", stdin=b'{"prompt": "a"}\n') == 2
    assert "delete it" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    assert generate(profile, tmp_path / "none.jsonl", "-o", tmp_path / "new.jsonl") == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.vllm
def test_lines_that_are_no_requests_need_no_engine(profile: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out.jsonl"
    assert generate(profile, "-", "-o", out, stdin=b"[]\n" * 21 + b"{}\n") == 1
    errors = [json.loads(line)["error"] for line in out.read_text().splitlines()]
    assert (errors[0], errors[-1]) == (
        "line 1: not a JSON object",
        "line 22: one of `prompt` and `messages` is needed",
    )
    said = capsys.readouterr().err
    assert "`frontend` applies only to a server and is ignored here: chat_template" in said
    assert "22 lines failed;" in said and said.count("not a JSON object") == 20
    assert generate(profile, "-", "-o", tmp_path / "none.jsonl", stdin=b"\n") == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


def batch(name: str, body: object) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})


@pytest.mark.vllm
def test_lines_of_openais_batch_api_are_answered_under_their_custom_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.serve.batch.CHILD", (sys.executable, "-c", ENGINE))
    lines = (
        batch("chat", {"model": "gpt-4o", "messages": CHAT, "max_completion_tokens": 9, "stream": False}),
        batch("text", {"model": "m", "prompt": "p", "max_tokens": 5, "temperature": 0.5, "stop": None}),
        batch("string", json.dumps({"prompt": "q", "user": "u"})),
        batch("logprobs", {"messages": CHAT, "logprobs": True, "top_logprobs": 3}),
        batch("none", {"messages": CHAT, "logprobs": False}),
        batch("unknown", {"model": "m", "prompt": "p", "temprature": 1}),
        batch("embedding", {"model": "m", "input": "p"}),
        json.dumps({"id": 7, "prompt": "plain", "max_tokens": 2}),
    )
    out = tmp_path / "out.jsonl"
    assert generate(laid_out(tmp_path), "-", "-o", out, stdin="\n".join(lines).encode()) == 1
    records = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {record.get("custom_id", record.get("id")): record.get("text") for record in records}
    assert texts == {
        "chat": "HI max_tokens=9",
        "text": "P max_tokens=5 temperature=0.5",
        "string": "Q",
        "logprobs": "HI logprobs=3",
        "none": "HI",
        "unknown": None,
        "embedding": None,
        7: "PLAIN max_tokens=2",
    }
    assert list(records[0])[:3] == ["custom_id", "index", "text"]
    assert [record["error"] for record in records if "error" in record] == [
        "line 6: unknown sampling parameter `temprature`",
        "line 7: one of `prompt` and `messages` is needed",
    ]
