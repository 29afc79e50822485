"""The engine child seen from outside: what happens when it is slow, refuses, fails, dies or does not end.

The child here is a script that speaks the protocol, because real engines do not fail on demand; the real one
is tested under tests/engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from specserve.errors import LaunchError, UsageError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve.batch import OfflineEngine

SPEAKER = """
import json, os, signal, sys, time
def send(**message):
    print(json.dumps(message), flush=True)
def messages():
    for line in sys.stdin:
        yield json.loads(line)
inbox = messages()
kwargs = next(inbox)["engine_kwargs"]
"""


def plan(**changes: object) -> LaunchPlan:
    values: dict[str, object] = {
        "name": "test",
        "fingerprint": "f",
        "vllm": "0.32.0",
        "platform": "cpu",
        "argv": ("vllm",),
        "env": {},
        "engine_kwargs": {"model": "m"},
        "host": "127.0.0.1",
        "port": 0,
        "model": "m",
        "stall_timeout_s": 60.0,
        "shutdown_timeout_s": 10.0,
    }
    return LaunchPlan(**{**values, **changes})  # type: ignore[arg-type]


def nothing() -> None:
    pass


def engine(script: str, log: Path, on_tick: Callable[[], None] = nothing, **changes: object) -> OfflineEngine:
    with pytest.MonkeyPatch.context() as patch:
        command = (sys.executable, "-c", SPEAKER + textwrap.dedent(script))
        patch.setattr("specserve.serve.batch.CHILD", command)
        return OfflineEngine(plan(**changes), log_path=log, on_tick=on_tick)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.touch()
    return path


def requests(count: int) -> Iterator[dict[str, Any]]:
    return (
        {"index": index, "prompt": f"prompt {index}", "params": {"max_tokens": 4}} for index in range(count)
    )


def text(
    index: int, text: str, finish_reason: str, prompt_tokens: int, completion_tokens: int
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "finish_reason": finish_reason,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
    }


WORKS = """
send(event="ready", vllm="0.32.0", max_num_seqs=2, defaults={})
for message in inbox:
    if "end" in message:
        break
    index = message["index"]
    if index == 1:
        send(event="refused", index=index, error="too long")
    else:
        send(event="finished", index=index, text=message["prompt"], finish_reason="stop",
             prompt_tokens=2, completion_tokens=message["params"]["max_tokens"])
counts = {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 4, "accepted_per_position": [2, 2]}
send(event="done", acceptance=counts)
"""


def test_an_engine_without_speculation_has_no_acceptance(log: Path) -> None:
    script = 'send(event="ready", vllm="0.33.0", max_num_seqs=1, defaults={})\nnext(inbox)\n'
    with engine(script + 'send(event="done", acceptance=None)', log) as child:
        child.start()
        assert list(child.answers([])) == []
    assert child.acceptance is None


def test_environment_of_the_plan_reaches_the_engine(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTSIDE", "from outside")
    script = 'send(event="ready", vllm=os.environ["A"] + os.environ["B"], max_num_seqs=1, defaults={})'
    with engine(script, log, env={"A": "a ", "B": FromEnv("OUTSIDE")}) as child:
        assert child.start() == "a from outside"


def test_a_variable_that_is_not_set_is_named_before_anything_starts(log: Path) -> None:
    with pytest.raises(UsageError, match="`NOT_SET_ANYWHERE`"):
        engine("", log, env={"HF_TOKEN": FromEnv("NOT_SET_ANYWHERE")})


def test_the_servers_key_is_not_asked_for(log: Path) -> None:
    with engine(WORKS, log, env={"VLLM_API_KEY": FromEnv("NOT_SET_ANYWHERE")}) as child:
        assert child.start() == "0.32.0"


def test_a_failed_start_gives_the_error_the_phase_and_the_log(log: Path) -> None:
    script = """
    print("ValueError: vocab sizes differ", file=sys.stderr, flush=True)
    send(event="failed", error="vocab sizes differ")
    sys.exit(1)
    """
    with (
        engine(script, log) as child,
        pytest.raises(LaunchError, match=r"code 1 after .*, while starting") as error,
    ):
        child.start()
    assert error.value.log_path == str(log)
    assert "vocab sizes differ" in error.value.causes[0]


def test_the_root_cause_is_preferred_to_vllms_pointer_to_it(log: Path) -> None:
    script = """
    head = "(EngineCore pid=1) ERROR 11-21 01:02:03 [core.py:1]"
    print(f"{head} torch.OutOfMemoryError: no room", file=sys.stderr)
    pointer = "Engine core initialization failed. See root cause above."
    print(f"RuntimeError: {pointer}", file=sys.stderr, flush=True)
    send(event="failed", error=pointer)
    """
    with engine(script, log) as child, pytest.raises(LaunchError) as error:
        child.start()
    assert "no room" in error.value.causes[0]


def test_a_killed_engine_is_an_error_and_no_wait(log: Path) -> None:
    script = """
    send(event="ready", vllm="0.32.0", max_num_seqs=2, defaults={})
    next(inbox)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with engine(script, log) as child:
        child.start()
        with pytest.raises(LaunchError, match=r"killed by SIGKILL after .*, while generating"):
            list(child.answers(requests(3)))


def test_an_engine_that_says_why_it_failed_is_quoted_if_its_log_says_nothing(log: Path) -> None:
    script = 'send(event="failed", error="no such method")\nsys.exit(1)'
    with engine(script, log) as child, pytest.raises(LaunchError) as error:
        child.start()
    assert error.value.causes == ("no such method",)


def test_an_engine_that_does_not_read_keeps_nobody_from_leaving(log: Path) -> None:
    script = 'send(event="ready", vllm="0.32.0", max_num_seqs=2, defaults={})\ntime.sleep(600)'

    is_ready = False

    def on_tick() -> None:
        if is_ready:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), engine(script, log, on_tick) as child:
        child.start()
        is_ready = True
        list(child.answers([{"index": 0, "prompt": "x" * (1 << 20), "params": {}}]))  # more than a pipe holds


def test_a_start_in_which_nothing_moves_is_given_up(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specserve.serve.process._LAST_WORDS_S", 0.5)
    with (
        engine("time.sleep(600)", log, stall_timeout_s=0.5) as child,
        pytest.raises(LaunchError, match=r"no progress for 0\.5s") as error,
    ):
        child.start()
    assert "stall_timeout_s" in str(error.value.hint)


def test_leaving_ends_an_engine_that_ignores_everything_and_what_it_started(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.serve.process._LAST_WORDS_S", 0.5)
    script = """
    import subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    send(event="ready", vllm=f"{os.getpid()} {grandchild.pid}", max_num_seqs=1, defaults={})
    time.sleep(600)
    """
    with engine(script, log) as child:
        pids = [int(pid) for pid in child.start().split()]
    assert_gone(pids)


def test_the_real_child_ends_when_its_parent_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "specserve.engine.offline"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(120) == 143


def assert_gone(pids: list[int]) -> None:
    for _ in range(600):
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"still running: {alive}")


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot write the log"):
        engine(WORKS, tmp_path / "file" / "engine.log")
