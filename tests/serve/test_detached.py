"""Detached servers with real processes: left, seen, dying, stopped, and never mistaken for others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from specserve.errors import LaunchError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import records
from specserve.serve.client import is_healthy
from specserve.serve.process import session
from specserve.serve.records import Record, Seen, observe, observe_all, only_server
from tests.serve.conftest import nothing_is_left, stop_now

FakePlan = Callable[..., LaunchPlan]
Start = Callable[..., Record]


def is_gone(record: Record) -> bool:
    assert record.leader is not None
    return nothing_is_left(record.leader[0], record.url)


def wait_for(name: str, state: str) -> Seen:
    deadline = time.monotonic() + 60
    while True:
        seen = observe(name)
        if seen is not None and seen.state == state:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def test_a_server_is_left_running_its_lost_state_written_again_and_it_is_stopped_by_name(
    start: Start, state: Path
) -> None:
    record = start()
    assert is_healthy(record.url)
    (seen,) = observe_all()
    assert (seen.name, seen.state, seen.detail) == ("demo", "ready", "")
    assert only_server(None).watcher == record.watcher
    file = records.path_of("demo")
    for damage in (file.unlink, lambda: file.write_text("{"), lambda: shutil.rmtree(state)):
        damage()
        assert wait_for("demo", "ready").record == record
    stop_now()
    assert is_gone(record)
    assert list(observe_all()) == []


def test_what_the_watcher_says_by_itself_is_in_the_log_and_not_on_the_terminal(start: Start) -> None:
    record = start()
    streams = [Path(f"/proc/{record.watcher[0]}/fd/{stream}").readlink() for stream in (1, 2)]
    assert streams == [Path(record.log_path)] * 2


def test_a_stopped_process_is_told_as_a_hang_until_it_goes_on(start: Start) -> None:
    record = start()
    assert record.leader is not None
    engine = next(each for each in session(record.leader[0]) if each.pid != record.leader[0])
    engine.suspend()
    assert f"process {engine.pid} was stopped (SIGSTOP)" in wait_for("demo", "hung").detail
    engine.resume()
    assert wait_for("demo", "ready")


def test_a_death_is_told_with_its_cause_and_the_name_can_be_used_again(start: Start) -> None:
    first = start()
    with pytest.raises(LaunchError, match=r"`demo` is already running at http://127\.0\.0\.1:"):
        start()
    assert first.leader is not None
    os.kill(first.leader[0], signal.SIGKILL)
    assert "was killed by SIGKILL" in wait_for("demo", "dead").detail
    assert is_gone(first)
    second = start()
    assert second.watcher != first.watcher
    assert wait_for("demo", "ready").record == second


def test_a_start_that_fails_is_told_once_and_leaves_nothing(start: Start) -> None:
    with pytest.raises(LaunchError, match="exited with code") as caught:
        start("--fault", "crash-loading")
    assert caught.value.causes
    assert observe("demo") is None


def test_a_server_ends_with_the_process_that_watches_it(start: Start) -> None:
    record = start()
    os.kill(record.watcher[0], signal.SIGKILL)
    assert "how it ended is not known" in wait_for("demo", "dead").detail
    assert is_gone(record)


def test_both_processes_may_be_killed_and_the_next_command_tidies_up(start: Start) -> None:
    record = start()
    assert record.leader is not None
    os.kill(record.leader[0], signal.SIGSTOP)
    os.kill(record.watcher[0], signal.SIGKILL)
    os.kill(record.leader[0], signal.SIGKILL)
    assert "how it ended is not known" in wait_for("demo", "dead").detail
    assert is_gone(record)


@pytest.mark.parametrize("fault", ["ignore-sigterm", "orphan"])
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_server_without_its_watcher_that_does_not_end_is_killed_after_its_time(
    start: Start, fault: str, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.serve.watcher._GUARDED_WITHIN_S", 60.0 if is_guarded else 0.0)
    record = start("--fault", fault, shutdown_timeout_s=0.5)
    assert record.leader is not None
    (guard,) = [each for each in psutil.Process(record.watcher[0]).children() if each.pid != record.leader[0]]
    os.kill(record.watcher[0], signal.SIGSTOP)  # else it ends the guard's session
    if not is_guarded:
        guard.kill()
    os.kill(record.watcher[0], signal.SIGKILL)
    if not is_guarded:
        assert "was killed" in wait_for("demo", "stopping").detail
    stop_now()
    assert is_gone(record)
    assert observe("demo") is None


LAUNCHER = """
import sys
from pathlib import Path
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.watcher import launch
fake, port, state = sys.argv[1:4]
plan = LaunchPlan(name="demo", fingerprint="0" * 64, vllm="0.32.0", platform="cpu",
    argv=(sys.executable, fake, "--port", port, *sys.argv[4:]), env={}, engine_kwargs={},
    host="127.0.0.1", port=int(port), model="tiny", stall_timeout_s=30, shutdown_timeout_s=5)
launch(plan, name="demo", profile="p", log_path=Path(state) / "d.log")
"""


def launcher(fake_plan: FakePlan, state: Path, *arguments: str) -> subprocess.Popen[bytes]:
    plan = fake_plan()
    words = [sys.executable, "-c", LAUNCHER, plan.argv[1], str(plan.port), str(state), *arguments]
    return subprocess.Popen(words, stderr=subprocess.PIPE)


def wait_for_leader(process: subprocess.Popen[bytes], state: Path) -> Record:
    while (record := records.read("demo") if state.exists() else None) is None or record.leader is None:
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.02)
    return record


def test_a_server_whose_launcher_was_killed_becomes_ready_all_the_same(
    start: Start, fake_plan: FakePlan, state: Path
) -> None:
    with launcher(fake_plan, state, "--pause", "0.2") as process:
        wait_for_leader(process, state)
        seen = observe("demo")
        assert seen is not None and seen.state == "starting"
        process.kill()
    record = wait_for("demo", "ready").record
    assert (
        record is not None
        and record.leader is not None
        and len(session(record.leader[0])) == 3
        and record.traces
    )
    stop_now()
    assert is_gone(record)


def test_a_server_that_starts_can_be_stopped_by_another_command(fake_plan: FakePlan, state: Path) -> None:
    with launcher(fake_plan, state, "--fault", "never-ready") as process:
        record = wait_for_leader(process, state)
        stop_now()
        assert process.stderr is not None
        assert b"SIGTERM came before the server was ready" in process.stderr.read()
    assert is_gone(record)
    assert observe("demo") is None


def test_two_commands_that_stop_the_same_server_both_end_well(start: Start) -> None:
    record = start()
    threads = [threading.Thread(target=stop_now) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert is_gone(record)
    assert observe("demo") is None
