"""A server from launch to end, with real processes and their faults (tests/fakes/vllm_server.py)."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from specserve.errors import Interrupted, LaunchError, TrafficError, UsageError
from specserve.memory.starts import kept
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import events
from specserve.serve.client import is_healthy
from specserve.serve.events import Phase
from specserve.serve.process import Child, StopRequest, stop_on_signals
from specserve.serve.server import RunningServer, running
from tests.serve.conftest import nothing_is_left

FakePlan = Callable[..., LaunchPlan]
ALL_PHASES = [Phase.ENGINE, Phase.WEIGHTS, Phase.KV_CACHE, Phase.API]


class Watched:
    """Keeps the events and the processes that were seen, to prove later that none is left."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.events.append(event)

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def phases(self) -> list[Phase]:
        progress = [event for event in self.events if isinstance(event, events.Progress)]
        return [event.phase for event in progress if not event.took_s]

    @property
    def stopped(self) -> events.Stopped:
        (event,) = [event for event in self.events if isinstance(event, events.Stopped)]
        return event

    @property
    def session(self) -> int:
        (event,) = [event for event in self.events if isinstance(event, events.Started)]
        return event.pid


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_server_is_handed_over_when_it_answers_200_and_is_gone_afterwards(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"VLLM_API_KEY": FromEnv("TEAM_KEY"), "VLLM_LOGGING_LEVEL": "ERROR"}
    plan = fake_plan("--fault", "unhealthy", env=env)
    monkeypatch.delenv("TEAM_KEY", raising=False)
    with pytest.raises(UsageError, match="`TEAM_KEY` is not set"), running(plan, log_path=tmp_path / "l"):
        pytest.fail("it must not start")
    monkeypatch.setenv("TEAM_KEY", "s3cret")
    with running(plan, log_path=tmp_path / "server.log", on_event=watched) as server:
        assert is_healthy(server.plan.url)
        assert len(server.child.members()) == 3  # the server, its engine, Python's resource tracker
        assert server.kv_cache_tokens == 29056
        environment = psutil.Process(server.child.pid).environ()
        assert (environment["VLLM_API_KEY"], environment["VLLM_LOGGING_LEVEL"]) == ("s3cret", "ERROR")
        assert "s3cret" not in " ".join(psutil.Process(server.child.pid).cmdline())
    assert watched.phases == ALL_PHASES
    assert [getattr(event, "memory", "") for event in watched.of(events.Ready)] == ["KV cache 29,056 tokens"]
    assert not watched.stopped.killed
    assert nothing_is_left(watched.session, plan.url)


def test_a_crash_while_loading_is_told_with_phase_cause_log_and_hint(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path
) -> None:
    plan = fake_plan("--fault", "crash-loading")
    with (
        pytest.raises(LaunchError) as caught,
        running(plan, log_path=tmp_path / "server.log", on_event=watched),
    ):
        pytest.fail("it never became ready")
    error = caught.value
    assert "exited with code 1" in error.message
    assert "while loading weights" in error.message
    assert error.causes == ("CUDA out of memory. Tried to allocate 1.02 GiB",)
    (start,) = kept(warn=pytest.fail)
    assert (start.cause, start.log_path) == (*error.causes, str(tmp_path / "server.log"))
    assert error.log_path == str(tmp_path / "server.log")
    assert error.hint is not None and "gpu_memory_utilization" in error.hint
    assert nothing_is_left(watched.session, plan.url)


def test_a_program_that_does_not_exist_is_an_error_with_a_way_out(
    fake_plan: FakePlan, tmp_path: Path
) -> None:
    plan = replace(fake_plan(), argv=("/no/such/vllm", "serve"))
    with (
        pytest.raises(LaunchError, match="cannot start `/no/such/vllm`") as caught,
        running(plan, log_path=tmp_path / "l"),
    ):
        pytest.fail("there is nothing to run")
    assert caught.value.hint is not None


def test_a_server_that_stands_still_is_given_up_and_stopped(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"

    def elapsed_s(_: Child) -> float:  # stands still until the weights load, then leaps at each look
        has_begun = log.exists() and "Loading weights took" in log.read_text()
        return next(leaps) if has_begun else 0.0

    leaps = itertools.count(30.0, 30.0)
    monkeypatch.setattr(Child, "elapsed_s", property(elapsed_s))
    plan = fake_plan("--fault", "never-ready", stall_timeout_s=30)
    with (
        pytest.raises(LaunchError, match=r"no progress for 30s while loading weights") as caught,
        running(plan, log_path=tmp_path / "server.log", on_event=watched),
    ):
        pytest.fail("it never became ready")
    assert caught.value.hint is not None and "stall_timeout_s" in caught.value.hint
    assert nothing_is_left(watched.session, plan.url)


def test_a_busy_server_is_waited_for_beyond_the_stall_limit_and_an_early_stop_is_an_interruption(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elapsed_s(child: Child) -> float:  # of a clock on which it always has 5 % of a core
        return 20 * psutil.Process(child.pid).cpu_times().user

    monkeypatch.setattr(Child, "elapsed_s", property(elapsed_s))
    plan = fake_plan("--fault", "stall-busy", stall_timeout_s=5)
    with StopRequest() as stop:

        def stop_later(event: events.Event) -> None:
            watched(event)
            if isinstance(event, events.Progress) and event.took_s > 3 * plan.stall_timeout_s:
                stop.request(signal.SIGINT)

        with (
            pytest.raises(Interrupted) as caught,
            running(plan, log_path=tmp_path / "server.log", on_event=stop_later, stop=stop),
        ):
            pytest.fail("it never became ready")
    assert caught.value.exit_code == 130
    assert watched.of(events.Stopping) == [events.Stopping("SIGINT", 5.0)]
    assert nothing_is_left(watched.session, plan.url)


def test_a_server_that_ignores_sigterm_is_killed_when_its_time_is_up(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path
) -> None:
    plan = fake_plan("--fault", "ignore-sigterm", shutdown_timeout_s=0.2)
    with running(plan, log_path=tmp_path / "server.log", on_event=watched):
        pass
    assert watched.of(events.Stopping) == [events.Stopping("SIGTERM", 0.2)]
    assert watched.stopped.killed
    assert not Path(tempfile.gettempdir(), f"fake-{watched.session}").exists()
    assert nothing_is_left(watched.session, plan.url)


def test_a_second_stop_kills_at_once(fake_plan: FakePlan, watched: Watched, tmp_path: Path) -> None:
    plan = fake_plan("--fault", "ignore-sigterm", shutdown_timeout_s=600.0)
    with StopRequest() as stop, running(plan, log_path=tmp_path / "server.log", on_event=watched, stop=stop):
        stop.request(signal.SIGINT)
        stop.request(signal.SIGINT)
    assert watched.stopped.killed
    assert nothing_is_left(watched.session, plan.url)


def test_an_engine_process_that_outlives_the_first_one_is_killed(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.serve.server._ORPHAN_GRACE_S", 0.2)
    plan = fake_plan("--fault", "orphan", shutdown_timeout_s=600.0)
    with running(plan, log_path=tmp_path / "server.log", on_event=watched):
        pass
    assert watched.stopped.killed
    assert nothing_is_left(watched.session, plan.url)


def end(server: RunningServer) -> None:
    """Make it end by itself, as its fault says."""
    os.kill(server.child.pid, signal.SIGUSR1)


def test_an_exit_that_nobody_asked_for_is_a_failure_even_with_code_0(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path
) -> None:
    plan = fake_plan("--fault", "exit-zero")
    with (
        pytest.raises(LaunchError, match=r"exited with code 0 .* while serving"),
        running(plan, log_path=tmp_path / "server.log", on_event=watched) as server,
    ):
        end(server)
        server.wait()
    assert nothing_is_left(watched.session, plan.url)


def test_a_killed_api_server_takes_its_engine_along(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path
) -> None:
    plan = fake_plan("--fault", "kill-self")
    with (
        pytest.raises(LaunchError, match="killed by SIGKILL") as caught,
        running(plan, log_path=tmp_path / "server.log", on_event=watched) as server,
    ):
        end(server)
        server.wait()
    assert caught.value.exit_code == 2
    assert nothing_is_left(watched.session, plan.url)


def test_a_terminal_that_went_away_and_an_error_of_the_user_do_not_keep_it_from_being_stopped(
    fake_plan: FakePlan, watched: Watched, tmp_path: Path
) -> None:
    def broken(event: events.Event) -> None:
        watched(event)
        raise BrokenPipeError

    plan = fake_plan()
    with pytest.raises(ZeroDivisionError), running(plan, log_path=tmp_path / "l", on_event=broken):
        raise ZeroDivisionError
    assert nothing_is_left(watched.session, plan.url)


def test_a_request_that_failed_because_the_server_died_is_told_as_the_death(
    fake_plan: FakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.serve.process._LAST_WORDS_S", 120.0)

    def use(server: RunningServer) -> None:
        end(server)
        while is_healthy(server.plan.url, timeout_s=60):
            time.sleep(0.05)
        raise TrafficError("no answer")

    plan = fake_plan("--fault", "exit-slowly")
    with pytest.raises(LaunchError, match="while serving"), running(plan, log_path=tmp_path / "l") as server:
        use(server)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_a_request_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_the_first_signal_is_remembered_and_the_second_counts() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert (stop.signal, stop.count) == (signal.SIGINT, 2)


def test_a_closing_terminal_that_hangs_up_twice_is_one_request() -> None:
    with StopRequest() as stop:
        stop.request(signal.SIGHUP)
        stop.request(signal.SIGHUP)
        assert stop.count == 1


def test_nohup_keeps_its_meaning() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_wait_ends_with_a_request_of_another_thread() -> None:
    with StopRequest() as stop:
        threading.Timer(0.05, stop.request).start()
        assert stop.wait(30)
