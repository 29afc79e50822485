"""The program's entry, and the one place where errors become words and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from specserve.errors import SpecserveError

_NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def main() -> NoReturn:
    """Run the command line; never returns and never shows a traceback."""
    _open_streams()
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        _tell("interrupted")
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        code = 0  # whoever read stdout has seen enough
    _let_go()
    sys.exit(code)


def _open_streams() -> None:
    """Opens what the caller closed: else the next file that is opened gets its number, and Python has None for it.

    stdin is empty then, stderr leads nowhere, and who writes to stdout is refused.
    """
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, flags), mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # a file name that is not UTF-8, or a terminal that is not, must not end the program
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = plain_lint(arguments)
        if code is not None:
            return code
        from specserve.cli.commands import run

        return run(arguments)
    except SpecserveError as error:
        from specserve.report.findings import failure

        _tell(failure(error))
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            _tell(f"error: cannot write: {error.strerror}")
            return 2
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            from specserve.errors import quoted

            _tell(f"error: {quoted(str(error.filename))} is too long for the name of a file")
            return 2
        from specserve.report.findings import crash_report, trace

        _tell(trace(error) if os.environ.get("SPECSERVE_DEBUG") else crash_report(error))
        return 3


def _tell(text: str) -> None:
    """Say it, if anybody still listens."""
    from specserve.report.console import say

    with suppress(OSError, ValueError):
        say(text)


def _let_go() -> None:
    """What cannot be written any more must not raise at exit."""
    from specserve.report.console import mute

    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except (OSError, ValueError):
            mute(stream)


_FORMATS = ("text", "concise", "json", "github", "sarif")
_SWITCHES = ("--strict", "--exit-zero", "--pick")
_VALUES = ("--format", "--stdin-filename")


def plain_lint(arguments: list[str]) -> int | None:
    """The exit code of a `lint` with plain options; None for everything else.

    Linters run on every save and every commit, and the library of the command line takes half of the time of such a
    run. What is not plain is left to the library; the two agree by test.
    """
    if arguments[:1] != ["lint"] or "_SPECSERVE_COMPLETE" in os.environ:
        return None
    paths: list[str] = []
    switches: set[str] = set()
    values: dict[str, str] = {}
    rest = iter(arguments[1:])
    for word in rest:
        name, sign, value = word.partition("=")
        if word in _SWITCHES:
            switches.add(word)
        elif name in _VALUES:
            values[name] = value if sign else next(rest, "")
        elif word == "-" or not word.startswith("-"):
            paths.append(word)
        else:
            return None
    if not paths or not all(values.values()) or values.get("--format", "text") not in _FORMATS:
        return None
    gc.set_threshold(100_000)  # what loads stays: looking for garbage in it takes a tenth of the run
    from specserve.cli.judge import FindingsFormat, judge

    format = values.get("--format")
    return judge(
        paths,
        format=FindingsFormat(format) if format else None,
        strict="--strict" in switches,
        exit_zero="--exit-zero" in switches,
        pick="--pick" in switches,
        stdin_filename=values.get("--stdin-filename"),
    )
