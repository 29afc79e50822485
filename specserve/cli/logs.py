"""`specserve logs`: what a detached server's vLLM wrote."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specserve.serve.logs import LogTail

_LOOK_S = 0.2
_WORKFLOW_COMMAND = re.compile(r"^(\s*)::|##\[")
"""What a job of GitHub Actions would obey when it is printed."""


def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, help="Default: the only one.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new lines until it ends, or Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="How many of the last lines; 0: all.")
    ] = 100,
) -> None:
    """Print a detached server's log, or follow it.

    Control characters are made visible: a log holds text from outside.

    \b
    specserve logs demo
    specserve logs demo -f
    specserve logs demo -n 0 | grep SpecDecoding
    """
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import only_server

    record = only_server(name)
    tail = _print_last(Path(record.log_path), lines=lines)
    server = Detached(record)
    try:
        while follow:
            runs = server.is_running()
            new = tail.read_raw()
            _write(new)
            if not new and not runs:
                _write([tail.rest] if tail.rest else [])
                return
            if not new:
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        return


def _print_last(path: Path, *, lines: int) -> LogTail:
    """Print the last lines of a log, or all of it for 0; what comes later is to be read."""
    from specserve.errors import FactError
    from specserve.serve.logs import LogTail, start_of_last_lines

    try:
        tail = LogTail(path, start=start_of_last_lines(path, lines) if lines else 0)
    except OSError as error:
        raise FactError(f"the log cannot be read: {path}: {error.strerror}") from error
    kept: list[bytes] = []
    while new := tail.read_raw():
        if lines:
            kept = [*kept, *new][-lines:]
        else:
            _write(new)
    _write(kept)
    return tail


def _write(lines: list[bytes]) -> None:
    from specserve.report.console import clean, out

    if lines:
        shown = [clean(line.decode(errors="replace").rstrip("\r")) for line in lines]
        if os.environ.get("GITHUB_ACTIONS") == "true":
            shown = [_WORKFLOW_COMMAND.sub(_visible, line) for line in shown]
        out("\n".join(shown))


def _visible(command: re.Match[str]) -> str:
    return f"\\x{ord(command[0].strip()[0]):02x}{command[0].strip()[1:]}"
