"""`specserve up`: from a profile to a server that answers, and its clean end."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

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
    PlanFormat,
    Port,
    ProfileOrCommand,
    Settings,
)
from specserve.errors import SpecserveError, UsageError, VerifyFailed
from specserve.plan.launchplan import LaunchPlan, as_json, shell
from specserve.plan.nodes import LaunchNode, node_at
from specserve.profile.schema import Profile
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.serve.server import Gate, RunningServer


class LogFormat(StrEnum):
    """How the talk on stderr is written."""

    TEXT = "text"
    JSON = "json"


def up(
    profile: ProfileOrCommand,
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
    shown = None if dry_run else format
    _refuse_contradictions(name=name, detach=detach, exec_=exec_, verify=verify, format=shown)
    node = _node(node_rank, master_addr, is_left=detach, is_verified=verify)
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
        node=node,
        notices=(notices := StderrNotices()),
    )
    if dry_run:
        out(json.dumps(as_json(plan), indent=2) if format is PlanFormat.JSON else shell(plan))
        return
    from specserve.serve.detached.observe import room_beside
    from specserve.serve.detached.registry import arm_of, default_name

    refuse_exposed(source, insecure=insecure, notices=notices)
    arm = "baseline" if baseline else alternative
    called = (name or default_name(plan.name, arm=arm)) if detach else None
    room = None if no_check else room_beside(source, plan, name=called, notices=notices)
    if exec_:
        _become_vllm(plan)
    options: dict[str, Any] = {"warms_up": not no_warm_up}
    if verify:
        options["gate"] = verification_gate(source, plan, as_json=log_format is LogFormat.JSON)
    if detach:
        options |= {"profile": source.file, "arm": arm_of(alternative, settings or ()), "room": room}
    start(plan, name=called, log_format=log_format, **options)


def _become_vllm(plan: LaunchPlan) -> NoReturn:
    """Put vLLM in the place of this process."""
    from specserve.serve.server import become

    if "NOTIFY_SOCKET" in os.environ:
        say("note: vLLM does not tell systemd when it is ready; without `--exec` specserve does")
    become(plan)


def _refuse_contradictions(
    *, name: str | None, detach: bool, exec_: bool, verify: bool, format: PlanFormat | None
) -> None:
    """Raises UsageError for options that do not go together: none is passed over in silence."""
    if name is not None and not detach:
        raise UsageError("`--name` is for a server that is left: `--detach --name NAME`")
    if detach and exec_:
        raise UsageError("`--detach` leaves vLLM behind, `--exec` becomes it: one of the two")
    if verify and exec_:
        hint = "`specserve verify` does it from elsewhere"
        raise UsageError("`--exec` becomes vLLM, and nobody is left to `--verify` it", hint=hint)
    if format is not None:
        hint = "`--log-format json` tells the start as JSON"
        raise UsageError("`--format` says how `--dry-run` prints the plan, and nothing else", hint=hint)


def _node(rank: int | None, address: str | None, *, is_left: bool, is_verified: bool) -> LaunchNode | None:
    """The node that is to be started; None if there is one. Raises UsageError."""
    if rank is None:
        if address is not None:
            raise UsageError("`--master-addr` is for one of several nodes: `--node-rank N`")
        return None
    if is_left:
        hint = "`specserve render PROFILE --to systemd` writes a unit for each node"
        raise UsageError("a node among several is not left with `--detach`", hint=hint)
    if is_verified and rank:
        raise UsageError("`--verify` asks the server, which is at node 0")
    return node_at(rank, address)


def start(
    plan: LaunchPlan, *, name: str | None = None, log_format: LogFormat = LogFormat.TEXT, **options: Any
) -> None:
    """Show how `serve` runs the server until a signal, or `launch` starts it under a name; both say what they raise."""
    from specserve.report.servers import JsonView, TextView
    from specserve.serve.detached.launch import launch
    from specserve.serve.server import serve

    is_json = log_format is LogFormat.JSON
    view = JsonView(plan) if is_json else TextView(plan, stays_as=name)
    try:
        if name is None:
            serve(plan, on_event=view, **options)
        else:
            launch(plan, name=name, on_event=view, **options)
    except SpecserveError as error:
        view.failed(error)
        if is_json:
            raise typer.Exit(error.exit_code) from error
        raise


_PATIENCE = 3
"""A verification may take this many times its limit before systemd gives up."""


def verification_gate(profile: Profile, plan: LaunchPlan, *, as_json: bool, limit_s: float = 60.0) -> Gate:
    """A gate that verifies as `specserve verify` does, without options, and prints the result on stderr."""
    from specserve.measure.verify.prompts import load_prompts
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.server import VerifyRequest, draft_limit, verify_url
    from specserve.report.verify import VerifyProgress, brief, brief_json
    from specserve.serve.signals import notify

    request = VerifyRequest((Sampling(0.0), Sampling(0.7)), load_prompts()[0], limit_s)
    limit = draft_limit(profile)

    def gate(server: RunningServer) -> None:
        limit_us = round(_PATIENCE * limit_s * 1e6)
        notify("STATUS=verifying; the port is open already", f"EXTEND_TIMEOUT_USEC={limit_us}")
        if not as_json:
            say("verifying; the port is open already, and requests are answered meanwhile")
        progress = None if as_json else VerifyProgress(limit_s=limit_s)
        found = verify_url(
            server.url, plan.api_key_env, request, stop=server.stop, progress=progress, draft_limit=limit
        )
        event = {"version": 1, "name": plan.name, "event": "verified"}
        say(json.dumps({**event, **brief_json(found)}) if as_json else brief(found))
        if found.has_failed:
            raise VerifyFailed(
                f"the server did not pass its verification ({found.verdict.value}): it is stopped",
                hint="without `--verify` it starts all the same; `specserve verify` then tells more",
            )

    return gate
