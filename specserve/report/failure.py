"""Errors as text: what happened, its causes, the way out; and the report of a bug."""

from __future__ import annotations

import os
import traceback
from datetime import datetime
from pathlib import Path

from specserve.errors import LaunchError, ProfileError, SpecserveError
from specserve.report.console import clean, styled
from specserve.report.text import render
from specserve.serve.ownfiles import write_anew
from specserve.serve.secrets import redacted
from specserve.serve.statefolder import private, state_folder


def failure(error: SpecserveError) -> str:
    """`error: …`, the causes, the end of the log where there is one, and a hint after an empty line."""
    parts = [f"{styled('error', 'red')}: {told(error.message)}"]
    parts += [f"  Caused by: {told(cause)}" for cause in error.causes]
    if isinstance(error, LaunchError):
        parts += _log(error)
    if isinstance(error, ProfileError) and error.findings:
        parts = [render(error.findings), *parts]
    if error.hint:
        parts += ["", f"{styled('hint', 'cyan')}: {told(error.hint)}"]
    return "\n".join(parts)


def told(text: str) -> str:
    """Text that may hold words of a server, a log or the Hub: what it echoes of our keys is none of a terminal's."""
    return clean(redacted(text))


def _log(error: LaunchError) -> list[str]:
    lines = []
    if error.log_tail:
        lines += ["", "  the log ends with", *(f"    | {told(line)}" for line in error.log_tail)]
    if error.log_path:
        lines += ["", f"  full log: {clean(error.log_path)}"]
    return lines


def crash_report(error: Exception) -> str:
    """Writes what is needed to find a bug, without values of profiles or keys, and says where."""
    text = clean(redacted(f"{type(error).__name__}: {error}", shapes=True))
    message = f"{styled('error', 'red')}: specserve failed in a way it did not expect: {text}"
    try:
        path = _write(error)
    except OSError:
        return f"{message}\n\nThis is a bug in specserve; SPECSERVE_DEBUG=1 shows where."
    return f"{message}\n\nThis is a bug in specserve. Please report it with `{path}`."


def _write(error: Exception) -> Path:
    import platform

    from specserve import __version__

    folder = private(state_folder() / "crashes")
    path = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.md"
    head = f"specserve {__version__}, Python {platform.python_version()}, {platform.platform()}"
    body = f"# {head}\n\n```\n{trace(error)}```\n"
    write_anew(path, body.encode(errors="backslashreplace"))
    return path


def trace(error: Exception) -> str:
    """The traceback without a word of the environment's secrets; it holds no values of variables."""
    return redacted("".join(traceback.format_exception(error)), shapes=True)
