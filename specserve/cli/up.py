"""`specserve up`: from a profile to a server that answers, and its clean end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specserve.cli import options
from specserve.cli.options import flag, number, option, refuse_alone, refuse_together
from specserve.errors import SpecserveError

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan

_PORT = "Listen on this port instead of `server.port`; 0 takes a free one."
_NODE_RANK = "Rank of this node, less than `hardware.nodes`."
_DETACH = "Return when the server is ready and leave it running; see `ps`, `logs` and `down`."
_NAME = "Name the detached server (default: the profile's name)."
_NO_CHECK = "Start even if the check finds errors."
_INSECURE = "Allow a server without API key to listen beyond this host."
_FORMAT = "Format of messages; json is one object per line on both streams."
Port = Annotated[int | None, number(_PORT, "--port", 0, 65535)]
NodeRank = Annotated[int | None, number(_NODE_RANK, "--node-rank", 0)]
Messages = Annotated[options.TextOrJson, typer.Option("--format", "--log-format", help=_FORMAT)]


def up(
    profile: options.ProfileOrCommand,
    *,
    alternative: options.Alternative = None,
    settings: options.Settings = None,
    port: Port = None,
    node_rank: NodeRank = None,
    detach: Annotated[bool, flag("--detach", _DETACH)] = False,
    name: Annotated[str | None, option("NAME", _NAME, "--name")] = None,
    no_check: Annotated[bool, flag("--no-check", _NO_CHECK)] = False,
    insecure: Annotated[bool, flag("--insecure", _INSECURE)] = False,
    locked: options.Locked = False,
    format: Messages = "text",
) -> None:
    """Check a profile, start vLLM, and say when it is ready.

    The address and a request to try go to stdout, the progress goes to stderr, and vLLM's own log
    to a file. CUDA_VISIBLE_DEVICES chooses GPUs where the profile names none.

    Exit codes: 0 if a signal stopped it after it was ready; 1 if the check found errors; 2 if the
    server did not start, or died; 130 or 143 if a signal stopped it before it was ready.

    \b
    specserve up configs/llama70b-8b.yaml --alternative ngram --port 8001
    specserve up configs/demo.yaml --alternative baseline
    specserve up configs/demo.yaml --detach
    specserve up big.yaml --node-rank 1 --set engine.master_addr=10.0.0.1
    """
    from specserve.checks.prepare import prepare, refuse_exposed
    from specserve.plan.launch import LaunchOptions
    from specserve.report.findings import StderrNotices
    from specserve.serve.records import path_of

    refuse_alone("--detach", detach, name=name)
    hint = "`specserve render PROFILE --to systemd` writes a unit for each node"
    refuse_together(node_rank=node_rank, detach=detach, hint=hint)
    wanted = LaunchOptions(
        settings=tuple(settings or ()),
        port=port,
        alternative=alternative,
        check=not no_check,
        locked=locked,
        passed=("SD108",) if insecure else (),
        node=node_rank,
    )
    notices = StderrNotices()
    source, plan = prepare(profile, wanted, notices=notices)
    refuse_exposed(source, insecure=insecure, notices=notices)
    if detach:
        name = default_name(plan.name, variant=alternative) if name is None else name
        path_of(name)  # refuses what cannot be a name before anything is written under it
    serving: dict[str, Any] = {}
    if detach:
        serving = {"profile": source.file, "alternative": alternative or ""}
        serving["settings"] = tuple(settings or ())
    start(plan, name=name, format=format, **serving)


def default_name(profile_name: str, *, variant: str | None) -> str:
    """The profile's name, with the variant that is served: both may run at the same time."""
    text = f"{profile_name}-{variant}" if variant else profile_name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63]


def start(
    plan: LaunchPlan,
    *,
    name: str | None = None,
    format: options.TextOrJson = "text",
    **serving: Any,
) -> None:
    """Run the server until a signal, or leave it under a name. Raises as `running` and `launch`."""
    from specserve.report.servers import JsonView, TextView
    from specserve.serve.logs import default_log
    from specserve.serve.process import stop_on_signals
    from specserve.serve.server import refuse_taken_port, running
    from specserve.serve.watcher import launch

    view = JsonView(plan) if format == "json" else TextView(plan, stays_as=name)
    serving["on_event"] = view
    try:
        if name is not None:
            launch(plan, name=name, **serving)
            return
        refuse_taken_port(plan)
        log = default_log(plan.name)
        with stop_on_signals() as stop, running(plan, log_path=log, stop=stop, **serving) as server:
            server.wait()
    except SpecserveError as error:
        if isinstance(view, JsonView):
            view.failed(error)
            raise typer.Exit(error.exit_code) from error
        raise
