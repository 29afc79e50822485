"""`specserve up --detach`: start a server and leave it. Knows how, not what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import typer

from specserve.cli.up import LogFormat, refuse_taken_port
from specserve.errors import SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.report.servers import JsonView, TextView
from specserve.serve.detached.observe import Room
from specserve.serve.detached.registry import Arm

if TYPE_CHECKING:
    from specserve.cli.gate import Gate


_TOLD = frozenset({"name", "target", "speculation", "alternatives", "expect", "hardware"})
"""Sections whose `--set` is kept with the state of a server: of `env` and the like nothing is."""


def arm_of(alternative: str | None, settings: Iterable[str]) -> Arm:
    """What has to be known later of the command line, to tell what the server promises."""
    kept = (setting for setting in settings if setting.partition("=")[0].partition(".")[0] in _TOLD)
    return Arm(alternative, tuple(kept))


def detached_name(plan: LaunchPlan, *, arm: str | None) -> str:
    """The profile's name, with the arm that is served: both may run at once."""
    whole = f"{plan.name}-{arm}" if arm else plan.name
    return re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-")[:63]


def leave(
    plan: LaunchPlan,
    *,
    name: str,
    profile: str,
    room: Room | None,
    log_format: LogFormat,
    arm: Arm | None = None,
    gate: Gate | None = None,
    warms_up: bool = True,
) -> None:
    """Start it under a name and return when it answers, and has passed the gate.

    `room`: what it declares to take, where that was judged. `arm`: as `arm_of` makes it.
    """
    from specserve.serve.detached.launch import launch, refuse_running
    from specserve.serve.detached.registry import folder_of
    from specserve.serve.logs import default_log
    from specserve.serve.signals import stop_on_signals

    folder_of(name)  # what cannot be a name ends it before anything starts
    refuse_running(name)
    view = JsonView(plan) if log_format is LogFormat.JSON else TextView(plan, stays_as=name)
    try:
        refuse_taken_port(plan)
        with stop_on_signals() as stop:
            launch(
                plan,
                name=name,
                profile=profile,
                arm=arm,
                room=room or Room((), None, None),
                log_path=default_log(name),
                stop=stop,
                on_event=view,
                first=partial(gate, stop=stop) if gate is not None else None,
                warms_up=warms_up,
            )
    except SpecserveError as error:
        view.failed(error)
        if log_format is LogFormat.JSON:
            raise typer.Exit(error.exit_code) from error
        raise
