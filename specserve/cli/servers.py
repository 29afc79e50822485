"""`specserve ps`, `logs` and `down`: the detached servers of this user on this host."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag
from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    from specserve.serve.events import Event
    from specserve.serve.logs import LogTail
    from specserve.serve.signals import StopRequest


def ps(*, format: Format = TextOrJson.TEXT) -> None:
    """List detached servers: state, port, acceptance.

    States: starting, ready, silent (does not answer), hung (answers, but no token comes), stopping,
    dead (ended by itself; the cause is shown), gone (the host was restarted; shown once), lost
    (runs, but its state on disk is gone). ACCEPTED is the share of draft tokens that the target
    accepted in the last minute.

    \b
    specserve ps
    specserve ps --format json
    """
    from specserve.report.console import out, say
    from specserve.report.servers import table
    from specserve.report.text import json_document
    from specserve.serve.detached.observe import observe_all
    from specserve.serve.detached.registry import remove

    servers = list(observe_all())
    if format is TextOrJson.JSON:
        out(json_document({"servers": servers}))
    elif servers:
        out(table(servers))
    else:
        say("there are no detached servers; `specserve up PROFILE --detach` starts one")
    for seen in servers:
        if seen.state == "gone" and seen.record is not None:
            remove(seen.name, run=seen.record.run)


_LOOK_S = 0.2
_FOLLOW = "Keep printing new lines until the server ends or you press Ctrl-C."
_LINES = "Print this many of the last lines; 0 prints all."


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="Name of a detached server (default: the only one).",
        ),
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help=_FOLLOW)] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help=_LINES)] = 100,
) -> None:
    """Print a detached server's log, or follow it.

    Control characters are shown as escapes, because a log contains text from outside.

    \b
    specserve logs demo
    specserve logs demo -f
    specserve logs demo -n 0 | grep SpecDecoding
    """
    from specserve.report.servers import print_log
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import only_server

    record = only_server(name)
    tail, server = print_last(Path(record.log_path), lines=lines), Detached(record)
    with suppress(KeyboardInterrupt):
        while follow:
            follow = server.is_running()
            if new := tail.read_raw():
                print_log(new)
                follow = True
            elif follow:
                time.sleep(_LOOK_S)
            elif tail.rest:
                print_log([tail.rest])


def print_last(path: Path, *, lines: int) -> LogTail:
    """Print the last lines of a log, or all of it for 0; what comes later is to be read."""
    from specserve.files import open_regular
    from specserve.report.servers import print_log
    from specserve.serve.logs import LogTail

    try:
        open_regular(path).close()
    except OSError as error:
        raise FactError(f"the log cannot be read: {path}: {error.strerror}") from error
    tail, kept = LogTail(path), deque[bytes](maxlen=lines or None)
    while new := tail.read_raw():
        kept.extend(new)
    print_log(kept)
    return tail


def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", show_default=False, help="Names from `specserve ps`."),
    ] = None,
    *,
    all_: Annotated[bool, flag("--all", "Stop every server of this user on this host.")] = False,
) -> None:
    """Stop detached servers after their running requests.

    A server gets SIGTERM and has `server.shutdown_timeout_s` seconds to finish its running
    requests. It refuses new ones during that time (vLLM 0.32 answers them with 500, although
    /health still answers 200). Processes that are left then get SIGKILL, and their shared memory
    and sockets are removed. A dead server is removed from the list. Press Ctrl-C twice to stop
    waiting.

    \b
    specserve down demo
    specserve down --all
    """
    from specserve.report.console import say
    from specserve.serve.detached.processes import marked
    from specserve.serve.detached.registry import names as known
    from specserve.serve.signals import stop_on_signals

    hint = "`specserve ps` lists the servers"
    if all_ == bool(names):
        raise UsageError("`down` takes either names or `--all`", hint=hint)
    running = set(marked().values()) | set(known())
    wanted = sorted(running) if all_ else list(dict.fromkeys(names or ()))
    for name in wanted:
        if name not in running:
            raise UsageError(f"there is no server {name!r}", hint=hint)
    if not wanted:
        say("there are no detached servers")
    with stop_on_signals() as stop:
        failed = [name for name in wanted if not _stop_one(name, stop)]
    if failed:
        raise typer.Exit(2)


def _stop_one(name: str, stop: StopRequest) -> bool:
    """Stop one; an error is printed, and the others are stopped all the same."""
    from specserve.errors import SpecserveError
    from specserve.report.console import escaped, say
    from specserve.report.findings import failure
    from specserve.report.servers import event_words
    from specserve.serve.detached.processes import stop_named

    def show(event: Event) -> None:
        say(f"{name}: {event_words(event)}")

    try:
        record = stop_named(name, stop=stop, emit=show)
    except SpecserveError as error:
        say(failure(error))
        return False
    if record is None:
        say(f"{name}: cleared")
        return True
    if record.ended is not None:
        cause = f"{record.ended.message}: {record.ended.cause}"
        say(escaped(f"{name}: had ended by itself: {cause}"))
    say(escaped(f"{name}: its log stays: {record.log_path}"))
    return True
