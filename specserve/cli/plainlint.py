"""`specserve lint PATH…` without the command line's library, which takes half of the time of such a run.

Linters run on every save and every commit. What is not plain is left to the library; the two agree by test.
"""

from __future__ import annotations

import os

_FORMATS = ("text", "concise", "json")


def plain_lint(arguments: list[str]) -> int | None:
    """The exit code of `lint` with paths, `--strict` and `--format`; None for everything else."""
    if arguments[:1] != ["lint"] or "_SPECSERVE_COMPLETE" in os.environ:
        return None
    paths, format, strict = [], "text", False
    rest = iter(arguments[1:])
    for word in rest:
        if word == "--strict":
            strict = True
        elif word == "--format" or word.startswith("--format="):
            format = next(rest, "") if word == "--format" else word.removeprefix("--format=")
        elif word == "-" or not word.startswith("-"):
            paths.append(word)
        else:
            return None
    if not paths or format not in _FORMATS:
        return None
    from specserve.cli.judge import Format, judge

    return judge(paths, format=Format(format), strict=strict)
