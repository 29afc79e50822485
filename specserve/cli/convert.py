"""`specserve convert`: an old command line, script or Python file to a profile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from specserve.cli.options import argument, given, number, option, refuse_alone
from specserve.errors import TrafficError, UsageError

_OUTPUT = "Write this new file (default: stdout)."
_PICK = "Convert this launch of several: its service, container or function, or its number."
_SOURCE = "A script, manifest, unit or program, `-` for stdin, or `--` followed by a command."


def convert(
    source: Annotated[list[str] | None, argument("FILE", _SOURCE)] = None,
    *,
    output: Annotated[str | None, option("PROFILE", _OUTPUT, "--output", "-o")] = None,
    pick: Annotated[str | None, option("NAME", _PICK, "--pick")] = None,
    pid: Annotated[int | None, number("Convert the vLLM of this process.", "--pid", 1)] = None,
    url: Annotated[str | None, option("URL", "Convert what this server tells.", "--url")] = None,
) -> None:
    """Turn an old launch (a command, script, program or process) into a profile.

    convert reads `vllm serve`, api_server, `docker run` and `inspect`, compose, Kubernetes, KServe,
    production-stack's values, systemd services, files for `--config`, `LLM(…)` and `subprocess` in
    Python, and SGLang's flags. Each change is a comment in the profile and a note on stderr. It
    executes nothing and writes no secret. Exit code 1: a value is missing, or an error is left.

    \b
    specserve convert serve.sh -o my.yaml
    docker inspect vllm | specserve convert -
    specserve convert --pid 4711 -o my.yaml
    specserve convert -- vllm serve org/model --speculative-model org/draft …
    """
    from specserve.checks.run import lint_text
    from specserve.convert.convert import FILE, converted
    from specserve.convert.reading import of_process, of_server, read_source
    from specserve.files import write_named
    from specserve.report.console import in_one_line, out
    from specserve.report.launch import say_converted

    target = None if output in (None, "-") else output
    if target and os.path.lexists(target):
        raise UsageError(f"`{target}` already exists", hint="name another file, or delete it")
    if len(given(FILE=source, pid=pid, url=url)) != 1:
        raise UsageError("`convert` takes a FILE, `--pid` or `--url`", hint="see `convert --help`")
    refuse_alone("FILE", bool(source), pick=pick)
    if source:
        start, origin = read_source(source, pick)
    else:
        start = of_process(pid) if pid else of_server(*_told(url or ""))
        origin = f"process {pid}" if pid else f"the server at {in_one_line(url or '')}"
    result = converted(start, origin=origin)
    if target:
        write_named(Path(target), result.text)
    else:
        out(result.text)
    # without the values that are not resolved, most rules would err
    findings = result.unresolved or lint_text(result.text, file=target or FILE)
    raise typer.Exit(int(say_converted(result, findings, target=target)))


def _told(url: str) -> tuple[str, dict[str, dict[str, Any]], str]:
    """The root of a server, its models, and its version and metrics. Raises what Client raises."""
    from specserve.serve.client import Client, endpoint, fetch

    asked = endpoint(url, api_key_env="VLLM_API_KEY")
    models, told = Client(asked).models(), []
    for path in ("/version", "/metrics"):
        with contextlib.suppress(TrafficError):
            told.append(fetch(asked.root, path, timeout_s=5.0))
    return asked.root, models, "\n".join(told)
