"""`specserve plan`: the exact launch of a profile, without launching it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from specserve.cli.options import Alternative, Devices, NoLock, Port, Settings


class Format(StrEnum):
    """How the plan is written."""

    SHELL = "shell"
    JSON = "json"


def plan(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="A profile; `-` is stdin; or -- and a vLLM command.")
    ],
    *,
    format: Annotated[Format, typer.Option(help="A command to paste, or JSON.")] = Format.SHELL,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value was written.")] = False,
    baseline: Annotated[bool, typer.Option("--baseline", help="Without speculation.")] = False,
    alternative: Alternative = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", show_default=False, help="For this vLLM; default: the installed one."
        ),
    ] = None,
    no_lock: NoLock = False,
    settings: Settings = None,
    port: Port = None,
    devices: Devices = None,
) -> None:
    """Print the exact launch: program, arguments, environment.

    What specserve adds is told, and why. Where a vLLM is installed the plan is for this machine, and starts
    the same server as `up` when pasted into a shell. With --vllm, or where none is installed, it is the
    launch that any machine shares.

    \b
    specserve plan configs/demo.yaml
    specserve plan configs/llama70b-8b.yaml --vllm 0.33 --format json
    specserve plan configs/llama70b-8b.yaml --origin
    specserve plan -- vllm serve org/model --max-model-len 8192
    """
    from specserve.cli.prepare import prepare
    from specserve.plan.shell import as_json, origins, shell
    from specserve.report.console import in_one_line, out, say

    _, made = prepare(
        profile,
        settings=settings or (),
        port=port,
        devices=devices,
        alternative=alternative,
        baseline=baseline,
        vllm=vllm,
        starts=False,
        use_lock=not no_lock,
    )
    rows = origins(made)
    if format is Format.JSON:
        content = as_json(made)
        if origin:
            content["origins"] = [{"key": key, "value": value, "where": where} for key, value, where in rows]
        out(json.dumps(content, indent=2))
        return
    if origin:
        width = max(len(key) for key, _, _ in rows)
        out("\n".join(f"{key:<{width}}  {where}  {in_one_line(value)}" for key, value, where in rows))
        return
    out(shell(made))
    say(f"# vLLM {made.vllm}, {made.platform}" + ("" if made.added else "; nothing added"))
    for item in made.added:
        say(f"# added {item.key}: {item.why}")
