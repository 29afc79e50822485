"""Errors as text: what happened, its causes, the way out; and the report of a bug."""

from __future__ import annotations

import os
import re
import traceback
from datetime import datetime
from pathlib import Path

from specserve.errors import LaunchError, ProfileError, SpecserveError
from specserve.report.console import clean, styled
from specserve.report.text import render

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


def failure(error: SpecserveError) -> str:
    """`error: …`, the causes, the end of the log where there is one, and a hint after an empty line."""
    parts = [f"{styled('error', 'red')}: {clean(error.message)}"]
    parts += [f"  Caused by: {clean(cause)}" for cause in error.causes]
    if isinstance(error, LaunchError):
        parts += _log(error)
    if isinstance(error, ProfileError) and error.findings:
        parts = [render(error.findings), *parts]
    if error.hint:
        parts += ["", f"{styled('hint', 'cyan')}: {clean(error.hint)}"]
    return "\n".join(parts)


def _log(error: LaunchError) -> list[str]:
    lines = []
    if error.log_tail:
        lines += ["", "  the log ends with", *(f"    | {clean(line)}" for line in error.log_tail)]
    if error.log_path:
        lines += ["", f"  full log: {clean(error.log_path)}"]
    return lines


def crash_report(error: Exception) -> str:
    """Writes what is needed to find a bug, without values of profiles or keys, and says where."""
    text = f"{type(error).__name__}: {error}"
    message = (
        f"{styled('error', 'red')}: specserve failed in a way it did not expect: {clean(redacted(text))}"
    )
    try:
        path = _write(error)
    except OSError:
        return f"{message}\n\nThis is a bug in specserve; SPECSERVE_DEBUG=1 shows where."
    return f"{message}\n\nThis is a bug in specserve. Please report it with `{path}`."


def _write(error: Exception) -> Path:
    import platform

    from platformdirs import user_state_path

    from specserve import __version__

    base = os.environ.get("SPECSERVE_STATE_DIR")
    folder = (Path(base) if base else user_state_path("specserve")) / "crashes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.md"
    trace = "".join(traceback.format_exception(error))
    head = f"specserve {__version__}, Python {platform.python_version()}, {platform.platform()}"
    body = f"# {head}\n\n```\n{trace}```\n"
    with os.fdopen(
        os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", errors="backslashreplace"
    ) as stream:
        stream.write(redacted(body))
    return path


def redacted(text: str) -> str:
    """The text without the values of environment variables whose names speak of secrets."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET.search(name):
            text = text.replace(value, f"${name}")
    return text
