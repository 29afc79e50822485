"""`specserve lint PATH…` without the command line's library, which takes half of the time of such a run.

Linters run on every save and every commit. What is not plain is left to the library; the two agree by test.
"""

from __future__ import annotations

import gc
import os

_FORMATS = ("text", "concise", "json", "github", "sarif")
_SWITCHES = ("--strict", "--exit-zero", "--pick")
_VALUES = ("--format", "--stdin-filename")


def plain_lint(arguments: list[str]) -> int | None:
    """The exit code of a `lint` with plain options; None for everything else."""
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
