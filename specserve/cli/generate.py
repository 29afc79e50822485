"""`specserve generate`: a file of prompts through the profile's engine, without a server."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Alternative, Baseline, Devices, Locked, NoCheck, NoLock, Settings, flag
from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan


def generate(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file, or `-` for stdin.")],
    source: Annotated[
        str, typer.Argument(metavar="IN.jsonl", help="Input with one request per line, or `-` for stdin.")
    ],
    *,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="OUT.jsonl", help="Write the answers here; `-` is stdout."),
    ] = "-",
    locked: Locked = False,
    no_lock: NoLock = False,
    settings: Settings = None,
    alternative: Alternative = None,
    baseline: Baseline = False,
    devices: Devices = None,
    no_check: NoCheck = False,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Resume an interrupted run, or drop it and start over."),
    ] = True,
    overwrite: Annotated[bool, flag("--overwrite", "Overwrite a complete output file.")] = False,
) -> None:
    """Generate offline: JSON lines in, JSON lines out, no server.

    An input line is {"prompt": "…"} or {"messages": […]}, with an optional "id" and sampling parameters by vLLM's names
    (max_tokens, temperature, top_p, seed, stop, …). A parameter that the line leaves out comes from the model's
    generation config, then from vLLM. Without max_tokens, a prompt gets 16 tokens and a chat the rest of the context,
    as from the server.

    Answers keep the order of the input. An answer is {"id", "index", "text", "finish_reason", "prompt_tokens",
    "completion_tokens"}; with `logprobs` in the line, also the tokens and their log-probabilities. A line that fails
    becomes {"id", "index", "error"}; it is listed at the end and makes the exit code 1.

    Each finished line is appended at once to OUT.jsonl.partial. After an interruption, `kill -9` included, the same
    command computes only the missing lines, unless the profile or the input has changed.

    \b
    specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl
    specserve generate demo.yaml in.jsonl -o out.jsonl --set target.dtype=float32
    cat prompts.jsonl | specserve generate demo.yaml - --baseline > answers.jsonl
    """
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices

    destination = None if output == "-" else Path(output)
    if profile == source == "-":
        raise UsageError("the profile and the input cannot both be stdin")
    if destination is not None and source != "-" and destination.resolve() == Path(source).resolve():
        raise UsageError("the output would replace the input", hint="give another file to `-o`")
    loaded, plan = cleared(
        profile,
        LaunchOptions(
            settings=tuple(settings or ()),
            devices=devices,
            alternative=alternative,
            baseline=baseline,
            check=not no_check,
            use_lock=not no_lock,
            locked=locked,
        ),
        notices=StderrNotices(),
    )
    if loaded.frontend:
        say(f"`frontend` applies only to a server and is ignored here: {', '.join(sorted(loaded.frontend))}")
    data = _read_input(source)
    if generate_file(plan, data=data, path=destination, resume=resume, overwrite=overwrite):
        raise typer.Exit(1)


def _read_input(source: str) -> bytes:
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise FactError(f"cannot read `{source}`: {error.strerror}") from error


def generate_file(
    plan: LaunchPlan, *, data: bytes, path: Path | None, resume: bool = True, overwrite: bool = False
) -> int:
    """Answer every line of `data`, say how it went, and return how many lines could not be done."""
    from specserve.report.answer import generation_line, say_generated
    from specserve.report.console import say
    from specserve.serve.batch import open_output, run

    output = open_output(plan, data=data, path=path, resume=resume, overwrite=overwrite)
    with closing(output), generation_line() as show:
        found = run(plan, data=data, output=output, show=show, say=say)
    say_generated(found)
    return len(found.errors)
