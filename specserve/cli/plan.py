"""`specserve plan` and `diff`: the exact launch of a profile, and what differs between two."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from specserve.cli.options import (
    Alternative,
    Format,
    ProfileOrCommand,
    Settings,
    TextOrJson,
    text_option,
)


class Engine(StrEnum):
    """What serves the profile."""

    VLLM = "vllm"
    SGLANG = "sglang"


_VLLM = "Plan for this vLLM version (default: the installed one)."
_DERIVE = "Compare A with this one of its `alternatives`, or with `baseline`."


def plan(
    profile: ProfileOrCommand,
    *,
    alternative: Alternative = None,
    settings: Settings = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="The engine that serves the profile.")
    ] = Engine.VLLM,
    vllm: Annotated[str | None, text_option("VERSION", _VLLM, "--vllm")] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Print the exact launch: program, arguments, environment.

    The text is a command to paste into a shell. The plan says what specserve adds to the profile,
    and why. If vLLM is installed, the plan is for this machine: it starts the same server as `up`.
    The plan leaves out what depends on the machine in three cases: you give --vllm; vLLM is not
    installed; or the installed vLLM does not support the accelerators (those that the profile
    names, or GPUs if the profile needs several and names none). A profile for several nodes gives
    one command for each node. With --engine sglang, the plan is the command that serves the profile
    with SGLang; a setting that has no counterpart there is an error. What vLLM makes of the launch
    is shown by `check --vllm installed -v`.

    \b
    specserve plan configs/demo.yaml
    specserve plan configs/llama70b-8b.yaml --vllm 0.33 --format json
    specserve plan configs/llama33-70b-eagle3.yaml --engine sglang
    specserve plan -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions
    from specserve.plan.nodes import LaunchNode, node_count
    from specserve.profile.load import load_profile
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices
    from specserve.report.launch import print_plans, print_sglang
    from specserve.vllm.versions import newest_in

    options = LaunchOptions(tuple(settings or ()), alternative, vllm=vllm, starts=False, whole=True)
    as_json = format is TextOrJson.JSON
    if engine is Engine.SGLANG and vllm is None:
        version = newest_in(load_profile(profile, settings=options.settings).vllm)
        options = replace(options, vllm=version)
    source, made = prepare(profile, options, notices=StderrNotices())
    if engine is Engine.SGLANG:
        print_sglang(source, as_json=as_json)
        return
    plans, count = [made], node_count(source)
    if count > 1:
        address = None if source.engine.get("master_addr") else "ADDRESS_OF_NODE_0"
        nodes = [replace(options, node=LaunchNode(rank, address)) for rank in range(count)]
        plans = [prepare(profile, each)[1] for each in nodes]
    print_plans(plans, as_json=as_json)
    if count > 1:
        given = "" if address is None else " --set engine.master_addr=ADDRESS_OF_NODE_0"
        say(f"# `up --node-rank N{given}` starts each node")


def diff(
    launches: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]",
            help="A profile, PROFILE@REVISION from git, or the name of a detached server; for B"
            " also `--` followed by a vLLM command.",
        ),
    ],
    *,
    alternative: Annotated[str | None, text_option("NAME", _DERIVE, "--alternative")] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Compare two launches, and show where each value comes from.

    diff compares arguments, environment and the other sections of the profiles, for the newest vLLM
    version that both allow. The exit code is 0, as with `git diff`.

    \b
    specserve diff configs/qwen3-8b-draft.yaml configs/qwen3-8b-dflash.yaml
    specserve diff configs/demo.yaml@HEAD~1 configs/demo.yaml
    specserve diff configs/llama70b-8b.yaml --alternative ngram
    specserve diff my.yaml -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.compare import both_sides
    from specserve.plan.compare import compare
    from specserve.report.console import escaped, out, say
    from specserve.report.launch import difference_text
    from specserve.report.text import count, json_document
    from specserve.serve.detached.processes import running_command

    a, b = both_sides(launches, alternative, running=running_command)
    comparison = compare(a, b)
    for text in dict.fromkeys([*a.ignored, *b.ignored]):
        say(f"note: not compared: {escaped(text)}")
    if format is TextOrJson.JSON:
        out(json_document(comparison))
    elif comparison.count:
        out(difference_text(a, b, comparison))
        say(f"Found {count(comparison.count, 'difference')}")
    else:
        say("No difference")
