"""`specserve ps`, `logs` and `down`: the detached servers of this user on this host."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, argument, flag
from specserve.errors import SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.serve.events import Event


def ps(*, format: Format = "text") -> None:
    """List detached servers: state, port, acceptance.

    States: starting, ready, silent (does not answer), hung (a process was stopped), stopping, dead
    (the cause is shown). ACCEPTED is the share of all draft tokens that the target accepted.

    \b
    specserve ps
    specserve ps --format json
    """
    from specserve.report.console import out, say
    from specserve.report.servers import table
    from specserve.report.text import json_document
    from specserve.serve.records import observe_all

    servers = list(observe_all())
    if format == "json":
        out(json_document({"servers": servers}))
    elif servers:
        out(table(servers))
    else:
        say("there are no detached servers; `specserve up PROFILE --detach` starts one")


_LOOK_S = 0.2
_NAME = "Name of a detached server (default: the only one)."
_FOLLOW = "Keep printing new lines until the server ends or you press Ctrl-C."
_LINES = "Print this many of the last lines; 0 prints all."


def logs(
    name: Annotated[str | None, argument("NAME", _NAME)] = None,
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
    from specserve.serve.logs import LogTail
    from specserve.serve.records import only_server

    record = only_server(name)
    tail = LogTail(Path(record.log_path))
    print_log(tail.last(lines))
    with suppress(KeyboardInterrupt):
        while follow:
            follow = record.is_watched
            if new := tail.read_raw():
                print_log(new)
                follow = True
            elif follow:
                time.sleep(_LOOK_S)
            elif tail.rest:
                print_log([tail.rest])


def down(
    names: Annotated[list[str] | None, argument("NAME…", "Names from `specserve ps`.")] = None,
    *,
    all_: Annotated[bool, flag("--all", "Stop every server of this user on this host.")] = False,
) -> None:
    """Stop detached servers after their running requests.

    A server gets SIGTERM and has `server.shutdown_timeout_s` seconds to finish its running
    requests; it refuses new ones. Processes that are left then get SIGKILL, and their shared memory
    and sockets are removed. A dead server is removed from the list. Press Ctrl-C twice to stop
    waiting.

    \b
    specserve down demo
    specserve down --all
    """
    from specserve.report.console import escaped, say
    from specserve.report.findings import failure
    from specserve.serve.records import names as known
    from specserve.serve.signals import stop_on_signals
    from specserve.serve.watcher import stop_server

    hint = "`specserve ps` lists the servers"
    if all_ == bool(names):
        raise UsageError("`down` takes either names or `--all`", hint=hint)
    running = known()
    wanted = running if all_ else list(dict.fromkeys(names or ()))
    for name in wanted:
        if name not in running:
            raise UsageError(f"there is no server {name!r}", hint=hint)
    if not wanted:
        say("there are no detached servers")
    failed = False
    with stop_on_signals() as stop:
        for name in wanted:  # an error is printed, and the others are stopped all the same
            try:
                record = stop_server(name, stop=stop, emit=partial(_show, name))
            except SpecserveError as error:
                say(failure(error))
                failed = True
                continue
            if record is not None and record.ended is not None and record.ended.cause:
                end = f"{record.ended.message}: {record.ended.cause}"
                say(escaped(f"{name}: had ended by itself: {end}"))
            last = f"its log stays: {record.log_path}" if record else "cleared"
            say(escaped(f"{name}: {last}"))
    if failed:
        raise typer.Exit(2)


def _show(name: str, event: Event) -> None:
    from specserve.report.console import say
    from specserve.report.servers import event_words

    say(f"{name}: {event_words(event)}")
