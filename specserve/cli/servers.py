"""`specserve ps`, `logs` and `down`: the detached servers of this user on this host."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag

if TYPE_CHECKING:
    from specserve.serve.events import Event
    from specserve.serve.signals import StopRequest


def ps(
    *,
    format: Format = TextOrJson.TEXT,
) -> None:
    """List detached servers: state, port, acceptance.

    States: starting, ready, silent (does not answer), hung (answers, but no token comes), stopping, dead (ended by
    itself; the cause is shown), gone (the host was restarted; shown once), lost (runs, but its state on disk is gone).
    ACCEPTED is the share of draft tokens that the target accepted in the last minute.

    \b
    specserve ps
    specserve ps --format json
    """
    from specserve.report.console import out, say
    from specserve.report.servers import as_json, table
    from specserve.serve.detached.observe import observe_all
    from specserve.serve.detached.registry import remove

    servers = list(observe_all())
    if format is TextOrJson.JSON:
        out(json.dumps(as_json(servers), indent=2))
    elif servers:
        out(table(servers))
    else:
        say("there are no detached servers; `specserve up PROFILE --detach` starts one")
    for seen in servers:
        if seen.state == "gone" and seen.record is not None:
            remove(seen.name, run=seen.record.run)


_LOOK_S = 0.2


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", show_default=False, help="Name of a detached server (default: the only one)."
        ),
    ] = None,
    *,
    follow: Annotated[
        bool,
        typer.Option(
            "-f", "--follow", help="Keep printing new lines until the server ends or you press Ctrl-C."
        ),
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="Print this many of the last lines; 0 prints all.")
    ] = 100,
) -> None:
    """Print a detached server's log, or follow it.

    Control characters are shown as escapes, because a log contains text from outside.

    \b
    specserve logs demo
    specserve logs demo -f
    specserve logs demo -n 0 | grep SpecDecoding
    """
    from specserve.report.servers import print_last, print_lines
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import only_server

    record = only_server(name)
    tail = print_last(Path(record.log_path), lines=lines)
    server = Detached(record)
    try:
        while follow:
            runs = server.is_running()
            new = tail.read_raw()
            print_lines(new)
            if not new and not runs:
                print_lines([tail.rest] if tail.rest else [])
                return
            if not new:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        return


def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", show_default=False, help="Names from `specserve ps`."),
    ] = None,
    *,
    all_: Annotated[bool, flag("--all", "Stop every server of this user on this host.")] = False,
) -> None:
    """Stop detached servers after their running requests.

    A server gets SIGTERM and has `server.shutdown_timeout_s` seconds to finish its running requests. It refuses new
    ones during that time (vLLM 0.32 answers them with 500, although /health still answers 200). Processes that are left
    then get SIGKILL, and their shared memory and sockets are removed. A dead server is removed from the list. Press
    Ctrl-C twice to stop waiting.

    \b
    specserve down demo
    specserve down --all
    """
    from specserve.errors import UsageError
    from specserve.report.console import say
    from specserve.serve.detached.processes import marked
    from specserve.serve.detached.registry import names as known
    from specserve.serve.signals import stop_on_signals

    if all_ == bool(names):
        raise UsageError("`down` takes either names or `--all`", hint="`specserve ps` lists the servers")
    running = set(marked().values()) | set(known())
    wanted = sorted(running) if all_ else list(dict.fromkeys(names or ()))
    for name in wanted:
        if name not in running:
            raise UsageError(f"there is no server {name!r}", hint="`specserve ps` lists them")
    if not wanted:
        say("there are no detached servers")
    with stop_on_signals() as stop:
        failed = [name for name in wanted if not _stop_one(name, stop)]
    if failed:
        raise typer.Exit(2)


def _stop_one(name: str, stop: StopRequest) -> bool:
    """Stop one; an error is printed, and the others are stopped all the same."""
    from specserve.errors import FactError, SpecserveError
    from specserve.report.console import escaped, say
    from specserve.report.findings import failure
    from specserve.serve.detached.processes import stop_marked, stop_server
    from specserve.serve.detached.registry import read, remove

    show = partial(_say_event, name)
    try:
        try:
            record = read(name)
        except FactError as error:
            say(escaped(f"{name}: {error.message}"))
            record = None
        if record is None:
            stop_marked(name, stop=stop, emit=show)
            remove(name)
            say(f"{name}: cleared")
            return True
        if record.ended is not None:
            say(escaped(f"{name}: had ended by itself: {record.ended.message}: {record.ended.cause}"))
        stop_server(record, stop=stop, emit=show)
        say(escaped(f"{name}: its log stays: {record.log_path}"))
    except SpecserveError as error:
        say(failure(error))
        return False
    return True


def _say_event(name: str, event: Event) -> None:
    """Say what happens to a server."""
    from specserve.report.console import say
    from specserve.report.text import duration
    from specserve.serve import events

    match event:
        case events.Stopping():
            grace = duration(event.grace_s)
            say(f"{name}: sent {event.signal}; running requests may finish for up to {grace}")
        case events.Stopped():
            how = " by SIGKILL" if event.killed else ""
            say(f"{name}: stopped in {duration(event.took_s)}{how}; nothing is left running")
