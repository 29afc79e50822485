"""`specserve logs`: what a detached server's vLLM wrote."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

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
