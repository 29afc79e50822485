"""`specserve down`: stop detached servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import flag

if TYPE_CHECKING:
    from specserve.serve.events import Event
    from specserve.serve.signals import StopRequest


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
        failed = [name for name in wanted if not _one(name, stop)]
    if failed:
        raise typer.Exit(2)


def _one(name: str, stop: StopRequest) -> bool:
    """Stop one; an error is printed, and the others are stopped all the same."""
    from specserve.errors import FactError, SpecserveError
    from specserve.report.console import clean, say
    from specserve.report.findings import failure
    from specserve.serve.detached.processes import stop_marked, stop_server
    from specserve.serve.detached.registry import read, remove

    show = partial(_show, name)
    try:
        try:
            record = read(name)
        except FactError as error:
            say(clean(f"{name}: {error.message}"))
            record = None
        if record is None:
            stop_marked(name, stop=stop, emit=show)
            remove(name)
            say(f"{name}: cleared")
            return True
        if record.ended is not None:
            say(clean(f"{name}: had ended by itself: {record.ended.message}: {record.ended.cause}"))
        stop_server(record, stop=stop, emit=show)
        say(clean(f"{name}: its log stays: {record.log_path}"))
    except SpecserveError as error:
        say(failure(error))
        return False
    return True


def _show(name: str, event: Event) -> None:
    """Say what happens to a server."""
    from specserve.report.console import say
    from specserve.report.numbers import duration
    from specserve.serve import events

    match event:
        case events.Stopping():
            grace = duration(event.grace_s)
            say(f"{name}: sent {event.signal}; running requests may finish for up to {grace}")
        case events.Stopped():
            how = " by SIGKILL" if event.killed else ""
            say(f"{name}: stopped in {duration(event.took_s)}{how}; nothing is left running")
