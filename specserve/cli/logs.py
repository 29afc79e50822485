"""`specserve logs`: what a detached server's vLLM wrote."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specserve.serve.detached.registry import Record

_LOOK_S = 0.2
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 20
"""A longer one is shown in pieces: nothing bounds what a log holds."""
_WORKFLOW_COMMAND = re.compile(r"^(\s*)::|##\[")
"""What a job of GitHub Actions would obey when it is printed."""


def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, help="Default: the only one.")
    ] = None,
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends, or Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="So many of the last; 0: all.")] = 100,
) -> None:
    """Print a detached server's log, or follow it.

    Control characters are made visible: a log holds text from outside.

    \b
    specserve logs demo
    specserve logs demo -f
    specserve logs demo -n 0 | grep SpecDecoding
    """
    from specserve.serve.detached.registry import only_server

    record = only_server(name)
    path = Path(record.log_path)
    position = _print_last(path, lines=lines)
    if follow:
        try:
            _follow(record, path, position=position)
        except KeyboardInterrupt:
            return


def _print_last(path: Path, *, lines: int) -> int:
    """The last lines of a log; returns how far it was read. A log of days is not read whole for a hundred lines."""
    from specserve.errors import FactError
    from specserve.serve.files import open_regular

    try:
        with open_regular(path) as file:
            end = file.seek(0, 2)
            start = 0
            if lines:
                start, found = end, 0
                while start > 0 and found <= lines and end - start < lines * _LONGEST_LINE:
                    step = min(_CHUNK_BYTES, start)
                    start -= step
                    file.seek(start)
                    found += file.read(step).count(b"\n")
            file.seek(start)
            rest = b""
            kept: list[bytes] = []
            while file.tell() < end and (data := file.read(min(_CHUNK_BYTES, end - file.tell()))):
                whole, rest = _split(rest + data)
                if lines:
                    kept = [*kept, *whole][-lines:]
                else:
                    _write(whole)
            _write(kept)
            return end - len(rest)
    except OSError as error:
        raise FactError(f"the log cannot be read: {path}: {error.strerror}") from error


def _follow(record: Record, path: Path, *, position: int) -> None:
    """Print what comes, until the server is gone and its log is at an end. A log that shrank is begun anew."""
    from specserve.serve.detached.processes import Detached
    from specserve.serve.files import open_regular

    group, rest = Detached(record), b""
    while True:
        runs = group.is_running()
        try:
            with open_regular(path) as file:
                if file.seek(0, 2) < position:
                    position, rest = 0, b""
                file.seek(position)
                data = file.read(_CHUNK_BYTES)
        except OSError:
            return
        position += len(data)
        whole, rest = _split(rest + data)
        _write(whole)
        if not data:
            if not runs:
                _write([rest] if rest else [])
                return
            time.sleep(_LOOK_S)


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines, and what begins another one."""
    *whole, rest = data.split(b"\n")
    return ([*whole, rest], b"") if len(rest) > _LONGEST_LINE else (whole, rest)


def _write(lines: list[bytes]) -> None:
    from specserve.report.console import clean, out

    if lines:
        shown = [clean(line.decode(errors="replace").rstrip("\r")) for line in lines]
        if os.environ.get("GITHUB_ACTIONS") == "true":
            shown = [_WORKFLOW_COMMAND.sub(_visible, line) for line in shown]
        out("\n".join(shown))


def _visible(command: re.Match[str]) -> str:
    return f"\\x{ord(command[0].strip()[0]):02x}{command[0].strip()[1:]}"
