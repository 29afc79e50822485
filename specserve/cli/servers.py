"""`specserve ps`, `logs` and `down`: the detached servers of this user on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve.cli.options import Format, argument, flag
from specserve.errors import FactError, SpecserveError, UsageError


def ps(*, format: Format = "text") -> None:
    """List detached servers: state, address, acceptance.

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

    servers = observe_all()
    if format == "json":
        out(json_document({"servers": servers}))
    elif servers:
        out(table(servers))
    else:
        say("there are no detached servers; `specserve up PROFILE --detach` starts one")


_NAME = "Name of a detached server (default: the only one)."
_LINES = "Print this many of the last lines."


def logs(
    name: Annotated[str | None, argument("NAME", _NAME)] = None,
    *,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help=_LINES)] = 100,
) -> None:
    """Print the end of a detached server's log.

    Control characters are shown as escapes, because a log contains text from outside. The path of
    the log goes to stderr, for `tail -f` and the like.

    \b
    specserve logs demo
    specserve logs demo -n 1000 | grep SpecDecoding
    """
    from specserve.report.console import in_one_line, say
    from specserve.report.servers import print_log
    from specserve.serve.logs import end_of
    from specserve.serve.records import only_server

    path = only_server(name).log_path
    try:
        text = end_of(Path(path))
    except OSError as error:
        raise FactError(f"the log cannot be read: {path}: {error.strerror}") from error
    say(in_one_line(path))
    print_log(text.splitlines()[-lines:])


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
    from specserve.serve.process import stop_on_signals
    from specserve.serve.records import names as known
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
            say(f"{name}: stopping; running requests may finish")
            try:
                record = stop_server(name, stop=stop)
            except SpecserveError as error:
                say(failure(error))
                failed = True
                continue
            if record is not None and record.cause:
                say(escaped(f"{name}: had ended by itself: {record.end}: {record.cause}"))
            last = f"nothing is left running; its log: {record.log_path}" if record else "cleared"
            say(escaped(f"{name}: {last}"))
    if failed:
        raise typer.Exit(2)
