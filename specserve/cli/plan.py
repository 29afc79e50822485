"""`specserve plan` and `diff`: the exact launch of a profile, and what differs between two."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    Assume,
    Format,
    PlanFormat,
    ProfileOrCommand,
    Settings,
    TextOrJson,
    flag,
    text_option,
)
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.plan.launch import LaunchOptions
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

_NODE_0 = "ADDRESS_OF_NODE_0"


class Engine(StrEnum):
    """What serves the profile."""

    VLLM = "vllm"
    SGLANG = "sglang"


def plan(
    profile: ProfileOrCommand,
    *,
    alternative: Alternative = None,
    settings: Settings = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="The engine that serves the profile.")
    ] = Engine.VLLM,
    vllm: Annotated[
        str | None,
        text_option("VERSION", "Plan for this vLLM version (default: the installed one).", "--vllm"),
    ] = None,
    assume: Assume = None,
    effective: Annotated[
        bool, flag("--effective", "Show what vLLM will really run (about 10 s, then cached).")
    ] = False,
    format: Annotated[
        PlanFormat, typer.Option("--format", help="Output format: a command to paste, or JSON.")
    ] = PlanFormat.SHELL,
) -> None:
    """Print the exact launch: program, arguments, environment.

    The plan says what specserve adds to the profile, and why. If vLLM is installed, the plan is
    for this machine: pasted into a shell, it starts the same server as `up`. The plan leaves out
    what depends on the machine in three cases: you give --vllm; vLLM is not installed; or the
    installed vLLM does not support the accelerators (those that the profile or --assume names, or
    GPUs if the profile needs several and names none). A profile for several nodes gives one command
    for each node. With --effective, vLLM's own code says what it will really run, why it differs
    from the profile, and which differences come from speculation. With --engine sglang, the plan is
    the command that serves the profile with SGLang; a setting that has no counterpart there is an
    error.

    \b
    specserve plan configs/demo.yaml
    specserve plan configs/llama70b-8b.yaml --vllm 0.33 --format json
    specserve plan my.yaml --assume 8xH200-141GB --effective
    specserve plan configs/llama33-70b-eagle3.yaml --engine sglang
    specserve plan -- vllm serve org/model --max-model-len 8192
    """
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.plan.launch import LaunchOptions
    from specserve.report.console import say
    from specserve.report.launch import print_plans

    options = LaunchOptions(
        settings=tuple(settings or ()),
        alternative=alternative,
        vllm=vllm,
        machine=machine_of(assume) if assume else None,
        starts=False,
        whole=True,
    )
    as_json = format is PlanFormat.JSON
    if engine is Engine.SGLANG:
        if effective or assume:
            given = "`--effective` or `--assume`"
            raise UsageError(f"`--engine sglang` cannot be combined with {given}")
        _print_sglang(profile, options, as_json=as_json)
        return
    source, made = _prepared(profile, options)
    if effective:
        _print_effective(source, options, as_json=as_json)
        return
    nodes = _each_node(profile, options, source)
    print_plans(nodes or [made], as_json=as_json)
    if nodes:
        say("# `up --node-rank N --master-addr ADDRESS` starts each node")


def _prepared(profile: str, options: LaunchOptions) -> tuple[Profile, LaunchPlan]:
    """The profile and its plan, cleared by the rules; what there is to say goes to stderr."""
    from specserve.checks.prepare import prepare
    from specserve.report.findings import StderrNotices

    return prepare(profile, options, notices=StderrNotices())


def _each_node(path: str, options: LaunchOptions, profile: Profile) -> list[LaunchPlan]:
    """The command of each node if there are several; a placeholder stands for an unknown address."""
    from specserve.checks.prepare import prepare
    from specserve.plan.nodes import LaunchNode, node_count

    count = node_count(profile)
    if count == 1:
        return []
    address = None if profile.engine.get("master_addr") else _NODE_0
    nodes = [replace(options, node=LaunchNode(rank, address)) for rank in range(count)]
    return [prepare(path, each)[1] for each in nodes]


def _print_sglang(profile: str, options: LaunchOptions, *, as_json: bool) -> None:
    """The command that serves a profile with SGLang, cleared by the rules. Raises UsageError."""
    from specserve.profile.load import load_profile
    from specserve.report.launch import print_sglang
    from specserve.vllm.versions import newest_in

    vllm = options.vllm or newest_in(load_profile(profile, settings=options.settings).vllm)
    source, _ = _prepared(profile, replace(options, vllm=vllm))
    print_sglang(source, as_json=as_json)


def _print_effective(profile: Profile, options: LaunchOptions, *, as_json: bool) -> None:
    """The configuration that vLLM makes of the launch. Raises FactError."""
    from specserve.checks.compare import effective
    from specserve.report import check
    from specserve.report.console import out
    from specserve.report.page import text_lines
    from specserve.report.text import json_document

    judged = effective(profile, machine=options.machine)
    out(
        json_document({"vllm": judged})
        if as_json
        else "\n".join(text_lines(check.effective(judged), sys.stdout))
    )


def diff(
    launches: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]",
            help=(
                "A profile, PROFILE@REVISION from git, or the name of a detached server; for B also"
                " `--` followed by a vLLM command."
            ),
        ),
    ],
    *,
    alternative: Annotated[
        str | None,
        text_option(
            "NAME",
            "Compare A with this one of its `alternatives`, or with `baseline`.",
            "--alternative",
        ),
    ] = None,
    format: Format = TextOrJson.TEXT,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 1 if there is a difference.")] = False,
) -> None:
    """Compare two launches, and show where each value comes from.

    diff compares arguments, environment and the other sections of the profiles, for the newest vLLM
    version that both allow. The exit code is 0, as with `git diff`; with --exit-code it is 1 if
    there is a difference.

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
    if format is TextOrJson.JSON:
        out(json_document(comparison))
    elif comparison.count:
        out(difference_text(a, b, comparison))
    for text in dict.fromkeys([*a.ignored, *b.ignored]):
        say(f"note: not compared: {escaped(text)}")
    if format is TextOrJson.TEXT:
        found = count(comparison.count, "difference")
        say(f"Found {found}" if comparison.count else "No difference")
    if exit_code and comparison.count:
        raise typer.Exit(1)
