"""The request that a server answers before it is called ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.errors import Interrupted, LaunchError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.serve import events
from specserve.serve.events import Phase
from specserve.serve.server import running
from specserve.serve.signals import StopRequest

FakePlan = Callable[..., LaunchPlan]


def test_the_server_has_answered_a_request_when_it_is_ready(
    fake_plan: FakePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "k-1")
    plan = fake_plan()
    plan = replace(plan, env={**plan.env, "VLLM_API_KEY": FromEnv("MY_KEY")})
    seen: list[events.Event] = []
    log = tmp_path / "server.log"
    with running(plan, log_path=log, on_event=seen.append, warms_up=True):
        assert "POST /v1/completions Bearer k-1" in log.read_text()
    kinds = [type(event) for event in seen]
    assert Phase.WARM_UP in [event.phase for event in seen if isinstance(event, events.PhaseEnded)]
    assert events.Ready in kinds and events.StaysCold not in kinds


def test_without_warm_up_no_request_is_sent(fake_plan: FakePlan, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with running(fake_plan(), log_path=log):
        assert "POST" not in log.read_text()


def test_a_server_that_refuses_the_request_is_ready_and_the_reason_is_reported(
    fake_plan: FakePlan, tmp_path: Path
) -> None:
    seen: list[events.Event] = []
    plan = fake_plan("--fault", "refuses")
    with running(plan, log_path=tmp_path / "server.log", on_event=seen.append, warms_up=True):
        pass
    (cold,) = [event for event in seen if isinstance(event, events.StaysCold)]
    assert cold.reason == "HTTP 404: no completions here"
    assert [type(event) for event in seen].index(events.StaysCold) < [type(event) for event in seen].index(
        events.Ready
    )


@pytest.mark.parametrize("fault", ["dies-of-a-request", "dies-after-an-answer"])
def test_a_server_that_dies_of_its_first_request_was_never_ready(
    fake_plan: FakePlan, tmp_path: Path, fault: str
) -> None:
    plan = fake_plan("--fault", fault)
    with (
        pytest.raises(LaunchError, match="while warming up"),
        running(plan, log_path=tmp_path / "server.log", warms_up=True),
    ):
        pytest.fail("it was called ready")


def test_a_server_that_never_answers_stalls(fake_plan: FakePlan, tmp_path: Path) -> None:
    plan = replace(fake_plan("--fault", "mute"), stall_timeout_s=3.0)
    with (
        pytest.raises(LaunchError, match="warming up"),
        running(plan, log_path=tmp_path / "server.log", warms_up=True),
    ):
        pytest.fail("it was called ready")


def test_ctrl_c_ends_the_warm_up(fake_plan: FakePlan, tmp_path: Path) -> None:
    stop = StopRequest()

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.PhaseStarted) and event.phase is Phase.WARM_UP:
            stop.request()

    plan = fake_plan("--fault", "mute")
    with (
        pytest.raises(Interrupted),
        running(plan, log_path=tmp_path / "server.log", on_event=interrupt, stop=stop, warms_up=True),
    ):
        pytest.fail("it was called ready")
