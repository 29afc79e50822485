"""`specserve upgrade --measure` with a real vLLM on both sides: the same one, so that nothing may be worse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.engine.conftest import tiny_profile

LIMIT_S = 600.0


@pytest.mark.engine
@pytest.mark.soak
def test_a_vllm_against_itself_is_never_worse_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    words = ["upgrade", str(tiny_profile(tmp_path, port=0)), "--from", sys.prefix, "--to", sys.executable]
    command = [sys.executable, "-m", "specserve", *words, "--measure", "30s", "--format", "json"]
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["measured"]
    words_by_name = {each["name"]: each["verdict"]["word"] for each in found["figures"]}
    assert {*words_by_name.values()} <= {"SAME", "UNDECIDED"}
    exact = ("mean acceptance length", "accepted at position 4", "KV cache", "greedy text")
    assert [words_by_name[name] for name in exact] == ["SAME"] * len(exact)
    assert found["starts"] == 2 and not found["partings"]

    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen, deadline = "", time.monotonic() + LIMIT_S
        while "is ready" not in seen:
            assert time.monotonic() < deadline
            seen = process.stderr.readline()
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(LIMIT_S) == 130 and "Traceback" not in rest
    assert not [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
