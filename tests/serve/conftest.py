"""Plans that start the stand-in server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.hardware.host import free_port
from specserve.plan.launchplan import FromEnv, LaunchPlan

FAKE = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
FakePlan = Callable[..., LaunchPlan]


def make_plan(
    *arguments: str,
    name: str = "fake",
    port: int | None = None,
    env: dict[str, str | FromEnv] | None = None,
    stall_timeout_s: float = 30.0,
    shutdown_timeout_s: float = 5.0,
) -> LaunchPlan:
    """A plan of the stand-in: `make_plan("--fault", "never-ready", stall_timeout_s=1)`."""
    port = port or free_port()
    return LaunchPlan(
        name=name,
        fingerprint="0" * 64,
        vllm="0.32.0+cpu",
        platform="cpu",
        argv=(sys.executable, str(FAKE), "--port", str(port), *arguments),
        env=env or {},
        engine_kwargs={},
        host="127.0.0.1",
        port=port,
        model="tiny",
        stall_timeout_s=stall_timeout_s,
        shutdown_timeout_s=shutdown_timeout_s,
    )


@pytest.fixture
def fake_plan() -> FakePlan:
    """The function that makes one."""
    return make_plan
