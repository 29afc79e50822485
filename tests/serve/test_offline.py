"""The engine child of `generate` seen from outside: slow, refusing, failing, not ending.

The child here is a script that speaks the protocol, because real engines do not fail on demand; the real one
is tested under tests/engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from specserve.errors import LaunchError, UsageError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import batch

SPEAKER = """
import json, os, signal, sys, time
def send(**message):
    print(json.dumps(message), flush=True)
inbox = (json.loads(line) for line in sys.stdin)
kwargs = next(inbox)["engine_kwargs"]
"""


@pytest.fixture(autouse=True)
def few_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specserve.serve.process._LAST_WORDS_S", 0.5)


def generate(tmp_path: Path, script: str, **changes: object) -> tuple[str, ...]:
    values: dict[str, object] = {
        "name": "test", "fingerprint": "f", "vllm": "0.32.0", "platform": "cpu", "argv": ("vllm",), "env": {},
        "engine_kwargs": {"model": "m"}, "host": "127.0.0.1", "port": 0, "model": "m", "stall_timeout_s": 60.0,
        "shutdown_timeout_s": 10.0,
    }  # fmt: skip
    plan = LaunchPlan(**{**values, **changes})  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "CHILD", (sys.executable, "-c", SPEAKER + textwrap.dedent(script)))
        out, data = tmp_path / "out.jsonl", b'{"prompt": "p"}\n'
        return batch.generate(plan, data=data, path=out, show=lambda _: None, say=lambda _: None)


ANSWER = """
next(inbox)
send(event="finished", index=0, text=os.environ.get("B", ""), completion_tokens=1)
send(event="done")
"""


def test_the_environment_of_the_plan_reaches_the_engine_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTSIDE", "from outside")
    env = {"B": FromEnv("OUTSIDE"), "VLLM_API_KEY": FromEnv("NOT_SET_ANYWHERE")}
    assert generate(tmp_path, 'send(event="ready", vllm="0.32.0")' + ANSWER, env=env) == ()
    assert '"text": "from outside"' in (tmp_path / "out.jsonl").read_text()


def test_a_variable_that_is_not_set_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`NOT_SET_ANYWHERE`"):
        generate(tmp_path, "", env={"HF_TOKEN": FromEnv("NOT_SET_ANYWHERE")})


def test_the_root_cause_is_preferred_to_what_the_engine_says_of_it(tmp_path: Path) -> None:
    script = """
    head = "(EngineCore pid=1) ERROR 11-21 01:02:03 [core.py:1]"
    print(f"{head} torch.OutOfMemoryError: no room", file=sys.stderr, flush=True)
    send(event="failed", error="Engine core initialization failed. See root cause above.")
    """
    with pytest.raises(LaunchError, match="while starting the engine") as error:
        generate(tmp_path, script)
    assert "no room" in error.value.causes[0]


def test_an_engine_that_says_why_it_failed_is_quoted_if_its_log_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="exited with code 1") as error:
        generate(tmp_path, 'send(event="failed", error="no such method")\nsys.exit(1)')
    assert error.value.causes == ("no such method",)


def test_a_killed_engine_is_an_error_and_no_wait(tmp_path: Path) -> None:
    script = 'send(event="ready", vllm="0.32.0")\nnext(inbox)\nos.kill(os.getpid(), signal.SIGKILL)'
    with pytest.raises(LaunchError, match=r"killed by SIGKILL after .*, while generating"):
        generate(tmp_path, script)


def test_a_start_in_which_nothing_moves_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no progress for 0\.5s") as error:
        generate(tmp_path, "time.sleep(600)", stall_timeout_s=0.5)
    assert "stall_timeout_s" in str(error.value.hint)


def test_an_engine_that_ignores_everything_ends_with_what_it_started(tmp_path: Path) -> None:
    script = f"""
    import subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{grandchild.pid}}")
    send(event="ready", vllm="0.32.0")
    """
    generate(tmp_path, script + textwrap.indent(ANSWER, "    ") + "    time.sleep(600)")
    for _ in range(600):
        pids = map(int, (tmp_path / "pids").read_text().split())
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail("still running")


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
