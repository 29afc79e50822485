"""The first request to a server, which is slow: it is sent before anybody is told that the server is ready."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events, health
from specserve.serve.events import OnEvent
from specserve.serve.group import Group
from specserve.serve.phases import Phase
from specserve.serve.stop import StopRequest

_TICK_S = 0.1
_NEWS_S = 0.5
_MAX_TOKENS = 8
"""Enough for a prefill, and for a draft and its verification after it."""


def warm_up(
    child: Group, plan: LaunchPlan, *, stop: StopRequest, emit: OnEvent, look: Callable[[], None]
) -> bool:
    """Send one short completion; whether the wait for it ended before the server stalled.

    The wait also ends if the process ends or `stop` is requested; the caller sees which. A server that refuses the
    request is ready all the same: that is an event. `look` is called while the request runs.
    """
    key = os.environ.get(plan.api_key_env) if plan.api_key_env else None
    body = {"model": plan.model, "prompt": "Hello", "max_tokens": _MAX_TOKENS}
    answers: list[tuple[int, str] | None] = []
    # a thread: the process is watched meanwhile, and a server that hangs never answers
    asking = threading.Thread(
        target=lambda: answers.append(health.post(f"{plan.url}/v1/completions", body, key=key)), daemon=True
    )
    began_s = news_s = child.elapsed_s
    clock = health.StallClock(plan.stall_timeout_s)
    emit(events.PhaseStarted(Phase.WARM_UP, began_s))
    asking.start()
    while asking.is_alive() and child.is_running() and not stop.wait(_TICK_S):
        now_s = child.elapsed_s
        if now_s - news_s < _NEWS_S:
            continue
        news_s = now_s
        look()
        emit(events.PhaseGoesOn(Phase.WARM_UP, now_s - began_s))
        if clock.is_stalled(health.activity(child.members(), log_bytes=0), at_s=now_s):
            return False
    if answers:
        emit(events.PhaseEnded(Phase.WARM_UP, child.elapsed_s - began_s))
        reason = _refusal(answers[0])
        if reason and child.is_running():
            emit(events.StaysCold(reason))
    return True


def _refusal(answer: tuple[int, str] | None) -> str | None:
    """Why a request got no completion, in the server's words; None if it got one."""
    if answer is None:
        return "the connection ended"
    status, text = answer
    if status == 200:
        return None
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = ""
    return f"HTTP {status}{f': {message}' if message else ''}"
