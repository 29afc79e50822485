"""`specserve convert`: an old command line, script or Python file to a profile."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli import options
from specserve.cli.options import argument, number, option
from specserve.errors import FactError, TrafficError, UsageError

if TYPE_CHECKING:
    from specserve.convert.launch import Launch

_MOST_PIDS, _ASK_S = 2**22, 5.0
_OUTPUT = "Write this new file (default: stdout)."
_PICK = "Convert this launch of several: its service, container or function, or its number."
_SOURCE = "A script, manifest, unit or program, `-` for stdin, or `--` followed by a command."
_PID = "Convert the vLLM that runs here as this process."
_URL = "Convert what this server tells of itself; the rest is left open."


def convert(
    source: Annotated[list[str] | None, argument("FILE", _SOURCE)] = None,
    *,
    output: Annotated[str | None, option("PROFILE", _OUTPUT, "--output", "-o")] = None,
    pick: Annotated[str | None, option("NAME", _PICK, "--pick")] = None,
    pid: Annotated[int | None, number(_PID, "--pid", 1, _MOST_PIDS)] = None,
    url: Annotated[str | None, option("NAME|URL", _URL, "--url")] = None,
) -> None:
    """Turn an old launch (a command, script, program or process) into a profile.

    convert reads `vllm serve`, api_server, `docker run`, compose files, what `docker inspect` and
    `kubectl get -o yaml` print, manifests of Kubernetes and KServe, the values of production-stack,
    units of systemd, vLLM's file for `--config`, `LLM(…)` and `subprocess` calls in
    Python, and SGLang's flags. It translates or leaves out what
    vLLM no longer has, and reports each change as a comment in the profile and on stderr. It never
    executes the source and never writes a secret from it. Exit code 1: the source lacks a value, so
    the profile lacks it too, or the profile has errors that convert could not fix.

    \b
    specserve convert serve.sh -o my.yaml
    docker inspect vllm | specserve convert -
    specserve convert --pid 4711 -o my.yaml
    specserve convert -- vllm serve org/model --speculative-model org/draft …
    """
    from specserve.checks.run import lint_text
    from specserve.convert.convert import FILE, converted
    from specserve.convert.live import of_process
    from specserve.convert.reading import read_source, with_settings
    from specserve.files import write_named
    from specserve.report.console import in_one_line, out
    from specserve.report.launch import say_converted

    target = None if output in (None, "-") else output
    if target and os.path.lexists(target):
        raise UsageError(f"`{target}` already exists", hint="name another file, or delete it")
    ways = options.given(FILE=source, pid=pid, url=url)
    if len(ways) != 1:
        raise UsageError("`convert` takes a FILE, `--pid` or `--url`", hint="see `convert --help`")
    if source:
        given, origin = read_source(source, pick)
    else:
        options.refuse_alone("FILE", is_there=False, pick=pick)
        given = of_process(pid) if pid is not None else _served(url or "")
        origin = f"process {pid}" if pid is not None else f"the server at {in_one_line(url or '')}"
        given = with_settings(given, folder=Path.cwd())
    result = converted(given, origin=origin)
    if target:
        write_named(Path(target), result.text)
    else:
        out(result.text)
    # without the values that are not resolved, most rules would err
    findings = list(result.unresolved) or lint_text(result.text, file=target or FILE)
    raise typer.Exit(1 if say_converted(result, findings, target=target) else 0)


def _served(server: str) -> Launch:
    """The launch of a server as far as it tells. Raises UsageError, TrafficError and FactError."""
    from specserve.convert.live import of_server
    from specserve.metrics.prometheus import read
    from specserve.serve.client import Client
    from specserve.serve.records import locate
    from specserve.serve.requests import endpoint, failing, fetch, scrape

    place, record = locate(server)
    asked = endpoint(place, api_key_env=record.api_key_env if record else None)
    models, version, text, metrics = Client(asked).models(), "", "", None
    with contextlib.suppress(TrafficError), failing(asked):
        status, said = fetch(f"{asked.root}/version", timeout_s=_ASK_S, key=asked.api_key)
        found = json.loads(said) if status == 200 else None
        version = str(found.get("version", "")) if isinstance(found, dict) else ""
    with contextlib.suppress(TrafficError, FactError):
        text = scrape(asked)
        metrics = read(text)
    return of_server(asked.root, models, version, metrics, text)
