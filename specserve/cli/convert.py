"""`specserve convert`: an old command line, script or Python file to a profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specserve.cli.options import argument, option
from specserve.errors import UsageError

_OUTPUT = "Write this new file (default: stdout)."
_PICK = "Convert this launch of several: its service, container or function, or its number."
_SOURCE = "A script, compose file or Python program, `-` for stdin, or `--` followed by a command."


def convert(
    source: Annotated[list[str], argument("FILE", _SOURCE)],
    *,
    output: Annotated[str | None, option("PROFILE", _OUTPUT, "--output", "-o")] = None,
    pick: Annotated[str | None, option("NAME", _PICK, "--pick")] = None,
) -> None:
    """Turn an old launch (a command, script or program) into a profile.

    convert reads `vllm serve`, api_server, `docker run`, compose files, Kubernetes manifests,
    `LLM(…)` and `subprocess` calls in Python and SGLang's flags. It translates or leaves out what
    vLLM no longer has, and reports each change as a comment in the profile and on stderr. It never
    executes the source and never writes a secret from it. Exit code 1: the source lacks a value, so
    the profile lacks it too, or the profile has errors that convert could not fix.

    \b
    specserve convert serve.sh -o my.yaml
    specserve convert offline.py
    specserve convert -- vllm serve org/model --speculative-model org/draft …
    """
    from specserve.checks.run import lint_text
    from specserve.convert.convert import FILE, converted
    from specserve.convert.reading import read_source
    from specserve.files import write_named
    from specserve.report.console import out
    from specserve.report.launch import say_converted

    target = None if output in (None, "-") else output
    if target and os.path.lexists(target):
        raise UsageError(f"`{target}` already exists", hint="name another file, or delete it")
    given, origin = read_source(source, pick)
    result = converted(given, origin=origin)
    if target:
        write_named(Path(target), result.text)
    else:
        out(result.text)
    # without the values that are not resolved, most rules would err
    findings = list(result.unresolved) or lint_text(result.text, file=target or FILE)
    raise typer.Exit(1 if say_converted(result, findings, target=target) else 0)
