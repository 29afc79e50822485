"""Detached servers with real processes: left, seen, dying, stopped, and never mistaken for others."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from specserve.errors import FactError, LaunchError
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events
from specserve.serve.detached import registry
from specserve.serve.detached.launch import DeviceRoom, launch
from specserve.serve.detached.observe import Seen, observe, observe_all
from specserve.serve.detached.processes import boot_id, marked, stop_marked, stop_server
from specserve.serve.detached.registry import Record, only_server
from specserve.serve.files import ticks
from specserve.serve.health import is_healthy
from specserve.serve.signals import StopRequest

FakePlan = Callable[..., LaunchPlan]
Start = Callable[..., Record]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def start(fake_plan: FakePlan, state: Path) -> Iterator[Start]:
    """Starts a detached stand-in server; what it started is ended with the test, whatever became of its state."""
    names: list[str] = []

    def started(
        *arguments: str, name: str = "demo", on_event: events.OnEvent = events.ignore, **more: object
    ) -> Record:
        names.append(name)
        with StopRequest() as stop:
            return launch(
                fake_plan(*arguments, **more),
                name=name,
                profile="demo.yaml",
                room=DeviceRoom(("cpu",), None, 1 << 20),
                log_path=state / "logs" / f"{name}.log",
                stop=stop,
                on_event=on_event,
            )

    yield started
    with StopRequest() as stop:
        for name in names:
            stop_marked(name, stop=stop, emit=events.ignore)


def stop_now(record: Record, emit: events.OnEvent = events.ignore) -> None:
    with StopRequest() as stop:
        stop_server(record, stop=stop, emit=emit)


def session(record: Record) -> list[psutil.Process]:
    assert record.leader is not None
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == record.leader[0] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def nothing_is_left(record: Record) -> bool:
    assert record.leader is not None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((record.host, record.port))
    ours = {f"psm_fake{record.leader[0]}", f"psm_leak{record.leader[0]}"}
    deadline = time.monotonic() + 60  # its watcher may still be at it
    while _left(record, ours) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _left(record, ours)


def _left(record: Record, ours: set[str]) -> bool:
    shared = [path for path in Path("/dev/shm").iterdir() if path.name in ours]
    return bool(session(record) or shared or marked(record.name))


def wait_for(name: str, state: str) -> Seen:
    deadline = time.monotonic() + 60
    while True:
        seen = observe(name)
        if seen is not None and seen.state == state:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def test_a_server_is_left_running_seen_by_others_and_stopped_by_name(start: Start, state: Path) -> None:
    record = start()
    assert is_healthy(record.url)
    (seen,) = observe_all()
    assert (seen.name, seen.state, seen.detail) == ("demo", "ready", "")
    assert only_server(None).run == record.run
    told: list[events.Event] = []
    stop_now(record, told.append)
    assert [type(event) for event in told] == [events.Stopping, events.Stopped]
    assert nothing_is_left(record)
    assert list(observe_all()) == []
    assert (state / "logs" / "demo.log").exists()


def test_its_watcher_ends_with_it_and_holds_no_terminal(start: Start) -> None:
    record = start()
    assert record.watcher is not None
    watcher = psutil.Process(record.watcher[0])
    streams = {Path(f"/proc/{watcher.pid}/fd/{number}").readlink() for number in (0, 1, 2)}
    assert streams == {Path(os.devnull)}
    assert watcher.cwd() == "/"
    stop_now(record)
    assert psutil.wait_procs([watcher], timeout=60)[1] == []


@pytest.mark.parametrize("victim", ["leader", "engine"])
def test_a_death_is_told_with_its_cause_and_nothing_of_it_is_left(start: Start, victim: str) -> None:
    record = start()
    assert record.leader is not None
    pids = [process.pid for process in session(record) if process.pid != record.leader[0]]
    os.kill(record.leader[0] if victim == "leader" else min(pids), signal.SIGKILL)
    if victim == "engine":  # the stand-in lives on without its engine, as a real server does not
        os.kill(record.leader[0], signal.SIGKILL)
    seen = wait_for("demo", "dead")
    assert seen.record is not None and seen.record.ended is not None
    assert seen.record.ended.exit_code == -signal.SIGKILL
    assert "was killed by SIGKILL" in seen.detail
    assert nothing_is_left(record)
    stop_now(record)
    assert observe("demo") is None


def test_an_exit_with_code_0_that_nobody_asked_for_is_a_death(start: Start) -> None:
    record = start("--fault", "exit-zero")
    assert record.leader is not None
    os.kill(record.leader[0], signal.SIGUSR1)
    seen = wait_for("demo", "dead")
    assert "exited with code 0" in seen.detail
    assert nothing_is_left(record)


def test_a_dead_name_can_be_used_again_a_running_one_cannot(start: Start) -> None:
    first = start()
    with pytest.raises(LaunchError, match=r"`demo` is already running at http://127\.0\.0\.1:"):
        start()
    assert first.leader is not None
    os.kill(first.leader[0], signal.SIGKILL)
    wait_for("demo", "dead")
    second = start()
    assert second.run != first.run
    assert wait_for("demo", "ready").record == second
    stop_now(first)  # what another launch has taken over is not touched
    assert wait_for("demo", "ready").record == second
    stop_now(second)


@pytest.mark.parametrize("fault", ["crash-loading", "die-silently"])
def test_a_start_that_fails_is_told_once_and_leaves_nothing(start: Start, fault: str) -> None:
    seen: list[events.Event] = []
    with pytest.raises(LaunchError, match="exited with code") as caught:
        start("--fault", fault, on_event=seen.append)
    assert caught.value.causes
    assert observe("demo") is None
    assert not marked("demo")


def test_a_log_that_cannot_be_written_ends_the_start(start: Start, state: Path) -> None:
    (state / "logs" / "demo.log").mkdir(parents=True)
    with pytest.raises(LaunchError, match=r"write its log `.*demo.log`: Is a directory"):
        start()
    assert observe("demo") is None


def test_a_state_that_cannot_be_written_starts_nothing(start: Start, state: Path) -> None:
    state.mkdir()
    (state / "servers").write_text("a file")
    with pytest.raises(FactError, match="cannot be written"):
        start()
    assert not marked("demo")


LAUNCHER = """
import sys
from pathlib import Path
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.detached.launch import launch
from specserve.serve.detached.launch import DeviceRoom
from specserve.serve.signals import StopRequest
fake, port, state = sys.argv[1:4]
plan = LaunchPlan(name="demo", fingerprint="0" * 64, vllm="0.32.0", platform="cpu",
    argv=(sys.executable, fake, "--port", port, *sys.argv[4:]), env={}, engine_kwargs={},
    host="127.0.0.1", port=int(port), model="tiny", stall_timeout_s=30, shutdown_timeout_s=5)
with StopRequest() as stop:
    launch(plan, name="demo", profile="p", room=DeviceRoom((), None, None), log_path=Path(state) / "d.log", stop=stop)
"""


def launcher(fake_plan: FakePlan, state: Path, *arguments: str) -> subprocess.Popen[bytes]:
    plan = fake_plan()
    words = [sys.executable, "-c", LAUNCHER, plan.argv[1], str(plan.port), str(state), *arguments]
    return subprocess.Popen(words, stderr=subprocess.PIPE)


def wait_for_leader(process: subprocess.Popen[bytes], state: Path) -> Record:
    while (record := registry.read("demo") if state.exists() else None) is None or record.leader is None:
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.02)
    return record


def test_a_server_whose_launcher_was_killed_becomes_ready_all_the_same(
    fake_plan: FakePlan, state: Path
) -> None:
    with launcher(fake_plan, state, "--pause", "0.4") as process:
        wait_for_leader(process, state)
        assert observe("demo") == Seen("demo", "starting", "", registry.read("demo"))
        process.kill()
    record = wait_for("demo", "ready").record
    assert record is not None and record.ready_at_s is not None
    assert len(record.members) == 3 and record.traces  # known by now, should its first process be killed
    stop_now(record)
    assert nothing_is_left(record)


def test_a_server_that_starts_can_be_stopped_by_another_command(fake_plan: FakePlan, state: Path) -> None:
    with launcher(fake_plan, state, "--fault", "never-ready") as process:
        record = wait_for_leader(process, state)
        stop_now(record)
        assert process.stderr is not None
        assert b"`demo` was stopped by another command" in process.stderr.read()
    assert nothing_is_left(record)
    assert observe("demo") is None


def test_two_commands_that_stop_the_same_server_both_end_well(start: Start) -> None:
    record = start()
    told: list[events.Event] = []
    threads = [threading.Thread(target=stop_now, args=(record, told.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert nothing_is_left(record)
    assert observe("demo") is None


def test_a_server_that_ignores_the_signal_is_killed_after_its_time(start: Start) -> None:
    record = start("--fault", "ignore-sigterm", shutdown_timeout_s=0.5)
    told: list[events.Event] = []
    stop_now(record, told.append)
    (stopped,) = [event for event in told if isinstance(event, events.Stopped)]
    assert stopped.killed
    assert nothing_is_left(record)


def test_a_state_that_cannot_be_written_any_more_keeps_no_server_from_being_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = start()

    def full(_record: Record) -> None:
        raise FactError("the state of `demo` cannot be written: No space left on device")

    monkeypatch.setattr(registry, "write", full)
    stop_now(record)
    assert nothing_is_left(record)
    assert observe("demo") is None


def test_a_process_that_has_the_pid_by_now_is_never_touched(start: Start) -> None:
    record = start()
    stop_now(record)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        before = dataclasses.replace(
            record, leader=(other.pid, (ticks(other.pid) or 0) - 1), members=(), watcher=None,
            stopper=(other.pid, 1),
        )  # fmt: skip
        registry.write(before)
        assert wait_for("demo", "dead").detail == "vLLM was stopped: `specserve down` asked it to"
        stop_now(before)
        assert other.poll() is None
        other.kill()


def test_a_server_of_an_earlier_boot_is_gone_and_nothing_is_signalled(start: Start) -> None:
    record = start()
    registry.write(dataclasses.replace(record, boot_id=f"not {boot_id()}"))
    seen = observe("demo")
    assert seen is not None and seen.state == "gone"
    assert session(record)
    registry.write(record)
    stop_now(record)


@pytest.mark.parametrize("damage", ["removed", "truncated", "folder removed"])
def test_a_server_whose_state_is_lost_is_found_by_its_mark(start: Start, state: Path, damage: str) -> None:
    record = start()
    file = state / "servers" / "demo" / "state.json"
    if damage == "removed":
        shutil.rmtree(file.parent)
    elif damage == "truncated":
        file.write_text(file.read_text()[:100])
    else:
        shutil.rmtree(state)
    (seen,) = observe_all()
    assert (seen.name, seen.state) == ("demo", "lost")
    assert record.leader is not None and record.leader[0] in seen.pids
    with StopRequest() as stop:
        assert stop_marked("demo", stop=stop, emit=events.ignore)
    assert nothing_is_left(record)


def test_a_stopped_process_is_told_as_a_hang(start: Start) -> None:
    record = start()
    engine = next(process for process in session(record) if record.leader and process.pid != record.leader[0])
    engine.suspend()
    seen = observe("demo")
    assert seen is not None and seen.state == "hung"
    assert f"process {engine.pid} was stopped (SIGSTOP)" in seen.detail
    engine.resume()
    assert wait_for("demo", "ready")
    stop_now(record)


def test_many_changes_at_once_leave_a_whole_record(start: Start) -> None:
    record = start()
    threads = [
        threading.Thread(target=registry.change, args=(record,), kwargs={"oom_kills": number})
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = registry.read("demo")
    assert now is not None and now.oom_kills in range(20)
    assert dataclasses.replace(now, oom_kills=record.oom_kills) == record
    stop_now(record)
