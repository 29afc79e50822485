"""`specserve up`: from a profile to a server that answers, and its clean end."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from specserve.checks.preflight import cleared, refuse_exposed
from specserve.cli.options import (
    Alternative,
    Devices,
    Locked,
    MasterAddr,
    NoCheck,
    NodeRank,
    NoLock,
    Port,
    Settings,
)
from specserve.errors import LaunchError, SpecserveError, UsageError, VerifyFailed
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices
from specserve.report.servers import JsonView, TextView

if TYPE_CHECKING:
    from specserve.plan.nodes import Node
    from specserve.serve.detached.observe import Room
    from specserve.serve.detached.registry import Arm
    from specserve.serve.server import Server
    from specserve.serve.signals import StopRequest


class LogFormat(StrEnum):
    """How the talk on stderr is written."""

    TEXT = "text"
    JSON = "json"


class PlanFormat(StrEnum):
    """How `--dry-run` writes the plan."""

    SHELL = "shell"
    JSON = "json"


def up(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="A profile; `-` is stdin; or -- and a vLLM command.")
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the launch and stop, without checking it.")
    ] = False,
    format: Annotated[
        PlanFormat | None, typer.Option(show_default=False, help="How --dry-run prints it; default: shell.")
    ] = None,
    exec_: Annotated[
        bool,
        typer.Option("--exec", help="Become vLLM: for containers. Nothing is watched or explained then."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it answers, and leave it: see ps, logs, down.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Of a detached server; default: the profile's."
        ),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="The same server without speculation.")
    ] = False,
    alternative: Alternative = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Then verify it, for about a minute; the port is open by then. See `verify`."
        ),
    ] = False,
    no_warm_up: Annotated[
        bool,
        typer.Option("--no-warm-up", help="Report the server ready before it has answered a first request."),
    ] = False,
    no_check: NoCheck = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this host without a key.")
    ] = False,
    locked: Locked = False,
    no_lock: NoLock = False,
    settings: Settings = None,
    port: Port = None,
    devices: Devices = None,
    node_rank: NodeRank = None,
    master_addr: MasterAddr = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="json: one object per line, on both streams.")
    ] = LogFormat.TEXT,
) -> None:
    """Check a profile, start vLLM, and say when it is ready.

    Ready means that the server has answered one short request: the first one is slow. Ctrl-C stops it. The address
    and a request to try go to stdout, progress goes to stderr, vLLM's own log to a file. Exit code 0: stopped by a
    signal after it was ready; 1: the check found errors, or --verify failed; 2: the server did not start, or died;
    130 or 143: stopped before it was ready. systemd is notified after --verify.

    \b
    specserve up configs/demo.yaml
    specserve up configs/llama70b-8b.yaml --alternative ngram --port 8001
    specserve up configs/demo.yaml --set target.max_model_len=512 --baseline
    specserve up configs/demo.yaml --detach
    specserve up big.yaml --node-rank 1 --master-addr 10.0.0.1
    """
    _refuse_contradictions(
        name=name, detach=detach, exec_=exec_, format=format, dry_run=dry_run, verify=verify
    )
    notices = StderrNotices()
    source, plan = cleared(
        profile,
        settings=settings or (),
        port=port,
        devices=devices,
        alternative=alternative,
        baseline=baseline,
        check=not no_check,
        starts=not dry_run,
        use_lock=not no_lock,
        locked=locked,
        passed=("SD108",) if insecure else (),
        node=_node(node_rank, master_addr, detach=detach, verify=verify),
        notices=notices,
    )
    if dry_run:
        show(plan, format=format or PlanFormat.SHELL)
        return
    from specserve.serve.detached.observe import room_beside

    refuse_exposed(source, insecure=insecure, notices=notices)
    called = (name or detached_name(plan, arm="baseline" if baseline else alternative)) if detach else None
    room = None if no_check else room_beside(source, plan, name=called, notices=notices)
    gate = verification_gate(source, plan, as_json=log_format is LogFormat.JSON) if verify else None
    if exec_:
        become(plan)
        return
    start = partial(launch, plan)
    if called is not None:
        arm = arm_of(alternative, settings or ())
        start = partial(leave, plan, name=called, profile=source.file, arm=arm, room=room)
    start(log_format=log_format, gate=gate, warms_up=not no_warm_up)


def _refuse_contradictions(
    *,
    name: str | None,
    detach: bool,
    exec_: bool,
    format: PlanFormat | None,
    dry_run: bool,
    verify: bool,
) -> None:
    """Raises UsageError for options that do not go together: none is passed over in silence."""
    if name is not None and not detach:
        raise UsageError("`--name` is for a server that is left: `--detach --name NAME`")
    if detach and exec_:
        raise UsageError("`--detach` leaves vLLM behind, `--exec` becomes it: one of the two")
    if verify and exec_:
        raise UsageError(
            "`--exec` becomes vLLM, and nobody is left to `--verify` it",
            hint="`specserve verify` does it from elsewhere",
        )
    if format is not None and not dry_run:
        raise UsageError(
            "`--format` says how `--dry-run` prints the plan, and nothing else",
            hint="`--log-format json` tells the start as JSON",
        )


def _node(rank: int | None, address: str | None, *, detach: bool, verify: bool) -> Node | None:
    """The node that is to be started; None where there is one. Raises UsageError."""
    if rank is None:
        if address is not None:
            raise UsageError("`--master-addr` is for one of several nodes: `--node-rank N`")
        return None
    if detach:
        raise UsageError(
            "a node among several is not left with `--detach`",
            hint="`specserve render PROFILE --to systemd` writes a unit for each node",
        )
    if verify and rank:
        raise UsageError("`--verify` asks the server, which is at node 0")
    from specserve.plan.nodes import node_at

    return node_at(rank, address)


def show(plan: LaunchPlan, *, format: PlanFormat) -> None:
    """The plan on stdout: as a command to paste, or as JSON."""
    from specserve.plan.launchplan import as_json, shell

    out(shell(plan) if format is PlanFormat.SHELL else json.dumps(as_json(plan), indent=2))


def launch(
    plan: LaunchPlan,
    *,
    log_format: LogFormat = LogFormat.TEXT,
    log_path: Path | None = None,
    gate: Gate | None = None,
    warms_up: bool = True,
) -> None:
    """Serve until a signal asks for the end. Raises LaunchError, UsageError, VerifyFailed and Interrupted.

    `gate`: called when it answers; what it raises ends the server.
    """
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, supervise
    from specserve.serve.signals import stop_on_signals

    view = JsonView(plan) if log_format is LogFormat.JSON else TextView(plan)
    try:
        refuse_taken_port(plan)
        with stop_on_signals() as stop:
            first = partial(gate, stop=stop) if gate is not None else None
            log_path = log_path or default_log(plan.name)
            supervise(plan, log_path=log_path, stop=stop, on_event=view, first=first, warms_up=warms_up)
    except SpecserveError as error:
        view.failed(error)
        if log_format is LogFormat.JSON:
            raise typer.Exit(error.exit_code) from error
        raise


def become(plan: LaunchPlan) -> None:
    """Replace this process by vLLM; returns only by an error."""
    from specserve.serve.process import resolve_env
    from specserve.serve.server import refuse_taken_port

    env = resolve_env(plan.env)
    if "NOTIFY_SOCKET" in os.environ:
        say("note: vLLM does not tell systemd when it is ready; without `--exec` specserve does")
    refuse_taken_port(plan)
    try:
        os.execvpe(plan.argv[0], plan.argv, env)  # noqa: S606  # no shell on purpose
    except OSError as error:
        raise LaunchError(f"cannot start `{plan.argv[0]}`: {error.strerror}") from error


_TOLD = frozenset({"name", "target", "speculation", "alternatives", "expect", "hardware"})
"""Sections whose `--set` is kept with the state of a server: of `env` and the like nothing is."""


def arm_of(alternative: str | None, settings: Iterable[str]) -> Arm:
    """What has to be known later of the command line, to tell what the server promises."""
    from specserve.serve.detached.registry import Arm

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
    from specserve.serve.detached.observe import Room
    from specserve.serve.detached.registry import folder_of
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port
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


_PATIENCE = 3
"""A verification may take so many times its limit before systemd gives the start up."""


class Gate(Protocol):
    """Called with a server that answers; what it raises ends the server."""

    def __call__(self, server: Server, *, stop: StopRequest) -> None:
        """Look at it."""


def verification_gate(profile: Profile, plan: LaunchPlan, *, as_json: bool, limit_s: float = 60.0) -> Gate:
    """A gate that verifies as `specserve verify` does, without options, and tells the result on stderr."""
    from specserve.measure.verify.prompts import load_prompts
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.server import VerifyRequest, draft_limit, verify_url
    from specserve.report.verify import VerifyProgress, brief, brief_json
    from specserve.serve.signals import notify

    request = VerifyRequest((Sampling(0.0), Sampling(0.7)), load_prompts()[0], limit_s)
    limit = draft_limit(profile)

    def gate(server: Server, *, stop: StopRequest) -> None:
        limit_us = round(_PATIENCE * limit_s * 1e6)
        notify("STATUS=verifying; the port is open already", f"EXTEND_TIMEOUT_USEC={limit_us}")
        if not as_json:
            say("verifying; the port is open already, and requests are answered meanwhile")
        progress = None if as_json else VerifyProgress(limit_s=limit_s)
        found = verify_url(
            server.url, plan.api_key_env, request, stop=stop, progress=progress, draft_limit=limit
        )
        if as_json:
            say(json.dumps({"version": 1, "name": plan.name, "event": "verified", **brief_json(found)}))
        else:
            say(brief(found))
        if found.has_failed:
            raise VerifyFailed(
                f"the server did not pass its verification ({found.verdict.value}): it is stopped",
                hint="without `--verify` it starts all the same; `specserve verify` then tells more",
            )

    return gate
