"""The program's entry, and the one place where errors become words and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def main() -> NoReturn:
    """Run the command line; never returns and never shows a traceback."""
    gc.set_threshold(100_000)  # what is imported stays: looking for garbage in it takes time
    _open_streams()
    try:
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:
        _tell("interrupted")
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        code = 0  # whoever read stdout has seen enough
    _flush()
    gc.freeze()  # at exit, too: nothing that was imported is looked through once more
    if "huggingface_hub" in sys.modules:
        os._exit(code)  # a download that goes on in a thread is not waited for
    sys.exit(code)


def _open_streams() -> None:
    """Open what the caller closed: else the next file that is opened gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # who writes to stdout is refused
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            stream = os.fdopen(os.open(os.devnull, flags), mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _run(arguments: list[str]) -> int:
    # here, so that Ctrl-C in what these import shows no traceback
    from specserve.errors import SpecserveError, quoted

    for stream in (sys.stdout, sys.stderr):
        # a file name that is not UTF-8, or a terminal that is not, must not end the program
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
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
            _tell(f"error: {quoted(str(error.filename))} is too long for the name of a file")
            return 2
        from specserve.report.findings import crash

        _tell(crash(error, has_trace=bool(os.environ.get("SPECSERVE_DEBUG"))))
        return 3


def _tell(text: str) -> None:
    """Say it, if anybody still listens."""
    from specserve.report.console import say

    with suppress(OSError, ValueError):
        say(text)


def _flush() -> None:
    """What cannot be written any more must not raise at exit."""
    from specserve.report.console import mute

    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except (OSError, ValueError):
            mute(stream)
