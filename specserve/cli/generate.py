"""`specserve generate`: a file of prompts through the profile's engine, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve.cli.options import Alternative, Devices, Locked, NoCheck, NoLock, Settings
from specserve.errors import UsageError


def generate(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="The profile; `-` is stdin.")],
    source: Annotated[str, typer.Argument(metavar="IN.jsonl", help="One request a line; `-` is stdin.")],
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT.jsonl", help="The answers; `-` is stdout.")
    ] = "-",
    locked: Locked = False,
    no_lock: NoLock = False,
    settings: Settings = None,
    alternative: Alternative = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="The same engine without speculation.")
    ] = False,
    devices: Devices = None,
    no_check: NoCheck = False,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Resume an interrupted run, or drop it and start over."),
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a complete output.")] = False,
) -> None:
    """Generate offline: JSON lines in, JSON lines out, no server.

    Answers keep the order of the lines. A line is {"prompt": "…"} or {"messages": […]}, an optional "id",
    and sampling parameters by vLLM's names (max_tokens, temperature, top_p, seed, stop, …). What a line
    leaves out comes from the model's generation config, then from vLLM; without max_tokens a prompt gets 16
    tokens and a chat the rest of the context, as from the server.

    An answer is {"id", "index", "text", "finish_reason", "prompt_tokens", "completion_tokens"}; a line that
    cannot be done becomes {"id", "index", "error"}, is listed at the end, and makes the exit code 1.

    Each finished line is appended at once to OUT.jsonl.partial, errors included. After an interruption or
    `kill -9` the same command computes only the missing lines, unless the profile or the input has changed.

    \b
    specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl
    specserve generate demo.yaml in.jsonl -o out.jsonl --set target.dtype=float32
    cat prompts.jsonl | specserve generate demo.yaml - --baseline > answers.jsonl
    """
    from contextlib import closing, nullcontext

    from specserve.checks.preflight import cleared
    from specserve.cli import batch
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices

    destination = None if output == "-" else Path(output)
    if profile == source == "-":
        raise UsageError("the profile and the input cannot both be stdin")
    if destination is not None and source != "-" and destination.resolve() == Path(source).resolve():
        raise UsageError("the output would replace the input", hint="give another file to `-o`")
    loaded, plan = cleared(
        profile,
        settings=settings or (),
        devices=devices,
        alternative=alternative,
        baseline=baseline,
        check=not no_check,
        use_lock=not no_lock,
        locked=locked,
        notices=StderrNotices(),
    )
    if loaded.frontend:
        say(f"`frontend` is for the server, and ignored here: {', '.join(sorted(loaded.frontend))}")
    data = batch.read_input(source)
    opened = None
    if destination is not None:
        opened = batch.open_output(plan, data=data, path=destination, resume=resume, overwrite=overwrite)
    with closing(opened) if opened is not None else nullcontext():
        if batch.run(plan, data=data, output=opened):
            raise typer.Exit(1)
