"""`specserve plan` and `diff`: the exact launch of a profile, and what differs between two."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    Assume,
    Devices,
    Effective,
    Format,
    MasterAddr,
    NodeRank,
    PlanFormat,
    Port,
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

_ABOUT_VLLM = "`--origin`, `--effective`, `--assume`, `--node-rank` or `--master-addr`"


class Engine(StrEnum):
    "What serves the profile."

    VLLM = "vllm"
    SGLANG = "sglang"


def plan(
    profile: ProfileOrCommand,
    *,
    format: Annotated[
        PlanFormat, typer.Option("--format", help="Output format: a command to paste, or JSON.")
    ] = PlanFormat.SHELL,
    origin: Annotated[bool, flag("--origin", "Show the file and line that each value comes from.")] = False,
    effective: Effective = False,
    engine: Annotated[
        Engine, typer.Option("--engine", help="The engine that serves the profile.")
    ] = Engine.VLLM,
    alternative: Alternative = None,
    vllm: Annotated[
        str | None,
        text_option("VERSION", "Plan for this vLLM version (default: the installed one).", "--vllm"),
    ] = None,
    assume: Assume = None,
    settings: Settings = None,
    port: Port = None,
    devices: Devices = None,
    node_rank: NodeRank = None,
    master_addr: MasterAddr = None,
) -> None:
    """Print the exact launch: program, arguments, environment.

    The plan says what specserve adds to the profile, and why. If vLLM is installed, the plan is for this machine:
    pasted into a shell, it starts the same server as `up`. The plan leaves out what depends on the machine in three
    cases: you give --vllm; vLLM is not installed; or the installed vLLM does not support the accelerators (those that
    the profile or --assume names, or GPUs if the profile needs several and names none). A profile for several nodes
    gives one command for each node. With --effective, vLLM's own code says what it will really run, why it differs
    from the profile, and which differences come from speculation. With --engine sglang, the plan is the command that
    serves the profile with SGLang; a setting that has no counterpart there is an error.

    \b
    specserve plan configs/demo.yaml
    specserve plan configs/llama70b-8b.yaml --vllm 0.33 --format json
    specserve plan configs/llama70b-8b.yaml --assume 8xH200-141GB --effective
    specserve plan configs/llama33-70b-eagle3.yaml --engine sglang
    specserve plan -- vllm serve org/model --max-model-len 8192
    """
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.plan.launch import LaunchOptions
    from specserve.plan.nodes import node_at, node_count
    from specserve.report.launch import print_plans

    options = LaunchOptions(
        settings=tuple(settings or ()),
        devices=devices,
        alternative=alternative,
        port=port,
        vllm=vllm,
        machine=machine_of(assume) if assume else None,
        starts=False,
        whole=True,
    )
    as_json = format is PlanFormat.JSON
    if engine is Engine.SGLANG:
        if origin or effective or assume or node_rank is not None or master_addr:
            raise UsageError(f"`--engine sglang` cannot be combined with {_ABOUT_VLLM}")
        return _print_sglang(profile, options, as_json=as_json)

    def planned(rank: int | None) -> tuple[Profile, LaunchPlan]:
        node = None if rank is None else node_at(rank, master_addr)
        return _prepared(profile, replace(options, node=node))

    source, made = planned(node_rank)
    if effective:
        return _print_effective(source, options, as_json=as_json)
    nodes = node_count(source) if node_rank is None else 1
    plans = [planned(rank)[1] for rank in range(nodes)] if nodes > 1 else [made]
    return print_plans(plans, as_json=as_json, with_origins=origin)


def _prepared(profile: str, options: LaunchOptions) -> tuple[Profile, LaunchPlan]:
    """The profile and its plan, once the rules have cleared it; what there is to say goes to stderr."""
    from specserve.checks.prepare import prepare
    from specserve.report.findings import StderrNotices

    return prepare(profile, options, notices=StderrNotices())


def _print_sglang(profile: str, options: LaunchOptions, *, as_json: bool) -> None:
    """The command that serves a profile with SGLang, once the rules have cleared it. Raises UsageError."""
    from specserve.profile.load import load_profile
    from specserve.report.launch import print_sglang
    from specserve.vllm.versions import newest_in

    if options.port is not None:
        options = replace(options, settings=(*options.settings, f"server.port={options.port}"))
    vllm = options.vllm or newest_in(load_profile(profile, settings=options.settings).vllm)
    source, _ = _prepared(profile, replace(options, vllm=vllm))
    print_sglang(source, as_json=as_json)


def _print_effective(profile: Profile, options: LaunchOptions, *, as_json: bool) -> None:
    """The configuration that vLLM makes of the launch. Raises FactError."""
    from specserve.checks.compare import effective
    from specserve.report.check import effective_text
    from specserve.report.console import out
    from specserve.report.text import json_document

    judged = effective(profile, machine=options.machine)
    out(json_document({"vllm": judged}) if as_json else effective_text(judged))


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help=(
                "A profile, PROFILE@REVISION from git, a NAME.lock.json, or the name of a detached server."
            ),
        ),
    ],
    b: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="B",
            show_default=False,
            help="What to compare with, or `--` followed by a vLLM command.",
        ),
    ] = None,
    *,
    alternative: Annotated[
        str | None,
        text_option(
            "NAME", "Compare A with this one of its `alternatives`, or with `baseline`.", "--alternative"
        ),
    ] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models/--no-models", help="Also compare models and memory, if they can be read here."
        ),
    ] = True,
    vllm: Annotated[
        str | None,
        text_option(
            "VERSION", "Compare for this vLLM version (default: the newest that both allow).", "--vllm"
        ),
    ] = None,
    vllm_source: Annotated[
        list[Path] | None,
        text_option(
            "WHEEL|DIR",
            (
                "Compare an upgrade: A on the installed vLLM with B (default: A) on this one. Given twice: A on the "
                "first, B on the second."
            ),
            "--vllm-source",
        ),
    ] = None,
    format: Format = TextOrJson.TEXT,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 1 if there is a difference.")] = False,
    settings: Settings = None,
) -> None:
    """Compare two launches, and show where each value comes from.

    diff compares arguments, environment, the other sections of the profiles, models and memory. It reads models from
    directories, the Hub cache and locks only. With --vllm-source, the code of both vLLM versions computes its
    configuration, so that you see what an upgrade changes, defaults included. The exit code is 0, as with `git diff`;
    with --exit-code it is 1 if there is a difference.

    \b
    specserve diff configs/qwen3-8b-draft.yaml configs/qwen3-8b-dflash.yaml
    specserve diff configs/demo.yaml@HEAD~1 configs/demo.yaml
    specserve diff configs/llama70b-8b.yaml --alternative ngram
    specserve diff configs/llama70b-8b.yaml --vllm-source vllm-0.34.0.whl
    specserve diff my.yaml my.lock.json
    specserve diff my.yaml -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.compare import both_sides, compare_sides
    from specserve.report.console import escaped, out, say
    from specserve.report.launch import Named, difference_json, difference_text
    from specserve.serve.detached.processes import running_command

    sources = vllm_source or []
    if len(sources) > 2:
        raise UsageError(f"`--vllm-source` can be given at most twice; found {len(sources)}")
    words = [a, *(b or [])]
    taken = both_sides(words, alternative, settings or (), is_alone=bool(sources), running=running_command)
    comparison, sides, unknown = compare_sides(taken, vllm, sources, models=models)
    one, two = (
        Named(item.label, side.plan.fingerprint, side.plan.vllm, side.plan.platform)
        for item, side in zip(taken, sides, strict=True)
    )
    if format is TextOrJson.JSON:
        out(difference_json(one, two, comparison))
    elif comparison.count:
        out(difference_text(one, two, comparison))
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        say(f"models and memory are not compared: {escaped(unknown[0])}{more}")
    for text in dict.fromkeys(text for item in taken for text in item.ignored):
        say(f"note: not compared: {escaped(text)}")
    if format is TextOrJson.TEXT:
        count = f"{comparison.count} difference{'' if comparison.count == 1 else 's'}"
        say(f"Found {count}" if comparison.count else "No difference")
    raise typer.Exit(1 if exit_code and comparison.count else 0)
