"""`specserve up`: from a profile to a server that answers, and its clean end."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, NoReturn

import typer

from specserve.checks.prepare import cleared, refuse_exposed
from specserve.cli.options import (
    Alternative,
    Devices,
    Locked,
    MasterAddr,
    NoCheck,
    NodeRank,
    PlanFormat,
    Port,
    ProfileOrCommand,
    Settings,
    TextOrJson,
    flag,
    text_option,
)
from specserve.errors import SpecserveError, UsageError
from specserve.plan.launch import LaunchOptions
from specserve.plan.launchplan import LaunchPlan, as_json, shell
from specserve.plan.nodes import LaunchNode, node_at
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices


def up(
    profile: ProfileOrCommand,
    *,
    dry_run: Annotated[bool, flag("--dry-run", "Print the launch and exit, without any check.")] = False,
    format: Annotated[
        PlanFormat | None,
        typer.Option("--format", show_default=False, help="Output format of --dry-run (default: shell)."),
    ] = None,
    exec_: Annotated[
        bool,
        flag(
            "--exec",
            (
                "Replace this process with vLLM, for containers; nothing then watches the server or explains a "
                "failure."
            ),
        ),
    ] = False,
    detach: Annotated[
        bool,
        flag(
            "--detach", "Return when the server is ready and leave it running; see `ps`, `logs` and `down`."
        ),
    ] = False,
    name: Annotated[
        str | None, text_option("NAME", "Name the detached server (default: the profile's name).", "--name")
    ] = None,
    alternative: Alternative = None,
    verify: Annotated[
        bool,
        flag("--verify", "Verify the server before reporting it ready (about one minute); see `verify`."),
    ] = False,
    no_warm_up: Annotated[
        bool, flag("--no-warm-up", "Report the server ready before it has answered a first request.")
    ] = False,
    no_check: NoCheck = False,
    insecure: Annotated[
        bool, flag("--insecure", "Allow a server without API key to listen beyond this host.")
    ] = False,
    locked: Locked = None,
    settings: Settings = None,
    port: Port = None,
    devices: Devices = None,
    node_rank: NodeRank = None,
    master_addr: MasterAddr = None,
    log_format: Annotated[
        TextOrJson,
        typer.Option("--log-format", help="Format of messages; json is one object per line on both streams."),
    ] = TextOrJson.TEXT,
) -> None:
    """Check a profile, start vLLM, and say when it is ready.

    The first request to a new server is slow, so `up` sends a short one itself. When it is answered, `up` says that the
    server is ready, and notifies systemd. The address and a request to try go to stdout, the progress goes to stderr,
    and vLLM's own log to a file.

    Exit codes: 0 if a signal stopped it after it was ready; 1 if the check found errors or --verify failed; 2 if the
    server did not start, or died; 130 or 143 if it was stopped before it was ready. Ctrl-C stops it.

    \b
    specserve up configs/llama70b-8b.yaml --alternative ngram --port 8001
    specserve up configs/demo.yaml --alternative baseline
    specserve up configs/demo.yaml --detach
    specserve up big.yaml --node-rank 1 --master-addr 10.0.0.1
    """
    shown = None if dry_run else format
    _refuse_contradictions(name=name, detach=detach, exec_=exec_, verify=verify, format=shown)
    node = _node(node_rank, master_addr, is_left=detach, is_verified=verify)
    options = LaunchOptions(
        settings=tuple(settings or ()),
        port=port,
        devices=devices,
        alternative=alternative,
        check=not no_check,
        starts=not dry_run,
        locked=locked,
        passed=("SD108",) if insecure else (),
        node=node,
    )
    source, plan = cleared(profile, options, notices=(notices := StderrNotices()))
    if dry_run:
        out(json.dumps(as_json(plan), indent=2) if format is PlanFormat.JSON else shell(plan))
        return
    from specserve.serve.detached.launch import room_beside
    from specserve.serve.detached.registry import arm_of, default_name, folder_of

    refuse_exposed(source, insecure=insecure, notices=notices)
    called = (default_name(plan.name, arm=alternative) if name is None else name) if detach else None
    if called is not None:
        folder_of(called)  # refuses what cannot be a name before anything is written under it
    room = None if no_check else room_beside(source, plan, name=called, notices=notices)
    if exec_:
        _become_vllm(plan)
    serving: dict[str, Any] = {"warms_up": not no_warm_up}
    if verify:
        from specserve.cli.verify import verification_gate

        serving["gate"] = verification_gate(plan, as_json=log_format is TextOrJson.JSON)
    if detach:
        serving |= {"profile": source.file, "arm": arm_of(alternative, settings or ()), "room": room}
    start(plan, name=called, log_format=log_format, **serving)


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
    refused = (
        (name is not None and not detach, "`--name` needs `--detach`: it names a detached server", None),
        (detach and exec_, "`--detach` and `--exec` cannot be combined", None),
        (
            verify and exec_,
            "`--exec` and `--verify` cannot be combined: with `--exec`, vLLM replaces specserve",
            "`specserve verify URL` verifies the server from another terminal",
        ),
        (
            format is not None,
            "`--format` needs `--dry-run`: it formats the printed plan",
            "`--log-format json` reports the start as JSON",
        ),
    )
    for is_refused, message, hint in refused:
        if is_refused:
            raise UsageError(message, hint=hint)


def _node(rank: int | None, address: str | None, *, is_left: bool, is_verified: bool) -> LaunchNode | None:
    """The node that is to be started; None if there is one. Raises UsageError."""
    if rank is None:
        if address is not None:
            raise UsageError("`--master-addr` needs `--node-rank N`")
        return None
    if is_left:
        hint = "`specserve render PROFILE --to systemd` writes a unit for each node"
        raise UsageError("`--node-rank` and `--detach` cannot be combined", hint=hint)
    if is_verified and rank:
        raise UsageError("`--verify` works only on node 0: the other nodes answer no requests")
    return node_at(rank, address)


def start(
    plan: LaunchPlan, *, name: str | None = None, log_format: TextOrJson = TextOrJson.TEXT, **options: Any
) -> None:
    """Run the server until a signal, or start it under a name, and show how. Raises as `running` and `launch` do."""
    from specserve.report.servers import JsonView, TextView
    from specserve.serve.detached.launch import launch
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, running
    from specserve.serve.signals import stop_on_signals

    is_json = log_format is TextOrJson.JSON
    view = JsonView(plan) if is_json else TextView(plan, stays_as=name)
    try:
        if name is None:
            refuse_taken_port(plan)
            log_path = default_log(plan.name)
            with (
                stop_on_signals() as stop,
                running(plan, log_path=log_path, on_event=view, stop=stop, **options) as server,
            ):
                server.wait()
        else:
            launch(plan, name=name, on_event=view, **options)
    except SpecserveError as error:
        view.failed(error)
        if is_json:
            raise typer.Exit(error.exit_code) from error
        raise
