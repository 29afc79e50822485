"""`specserve diff`: what differs between two launches."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.cli.sides import Taken
    from specserve.plan.compare import Comparison, Side


class Format(StrEnum):
    """How the differences are written."""

    TEXT = "text"
    JSON = "json"


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="A profile, PROFILE@REVISION of git, NAME.lock.json, a server of `ps`."
        ),
    ],
    b: Annotated[
        list[str] | None,
        typer.Argument(metavar="B", show_default=False, help="Another one; or -- and a vLLM command."),
    ] = None,
    *,
    alternative: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="B is this alternative of A."),
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="B is A without speculation.")] = False,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="Models and memory too, where they can be read here.")
    ] = True,
    vllm: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            show_default=False,
            help="For this vLLM; default: the newest that both are for.",
        ),
    ] = None,
    vllm_source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="WHEEL|DIR",
            show_default=False,
            help="B runs on this vLLM, and A on the installed one: an upgrade. Named twice: A, then B.",
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="How the differences are written.")] = Format.TEXT,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit code 1 where there is a difference.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", show_default=False, help="Override a value in both; repeatable."
        ),
    ] = None,
) -> None:
    """Compare two launches, each value with its place.

    Arguments and environment, what a profile says besides, models and memory; models are read from
    directories, the Hub cache and locks only. With --vllm-source the code of both vLLMs makes its configuration
    of the launch: what an upgrade changes, defaults included. Exit code 0, as with `git diff`; --exit-code makes it
    1 where there is a difference.

    \b
    specserve diff configs/qwen3-8b-draft.yaml configs/qwen3-8b-dflash.yaml
    specserve diff configs/demo.yaml@HEAD~1 configs/demo.yaml
    specserve diff configs/llama70b-8b.yaml --alternative ngram
    specserve diff configs/llama70b-8b.yaml --vllm-source vllm-0.34.0.whl
    specserve diff my.yaml my.lock.json
    specserve diff my.yaml -- vllm serve org/model --max-model-len 8192
    """
    from specserve.cli.sides import pair
    from specserve.report.console import clean, out, say
    from specserve.report.difference import Named, difference_json, difference_text

    taken = pair(
        [a, *(b or [])],
        alternative=alternative,
        baseline=baseline,
        settings=settings or (),
        alone=bool(vllm_source),
    )
    versions = _versions(vllm_source, vllm) if vllm_source else (vllm, vllm)
    sides = _planned(*taken, versions=versions)
    comparison, unknown = _compared(taken, sides, models=models and not vllm_source)
    if vllm_source:
        comparison = _with_effective(comparison, taken, vllm_source)
    one, two = (
        Named(item.label, side.plan.fingerprint, side.plan.vllm, side.plan.platform)
        for item, side in zip(taken, sides, strict=True)
    )
    if format is Format.JSON:
        out(difference_json(one, two, comparison))
    elif comparison.count:
        out(difference_text(one, two, comparison))
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        say(f"models and memory are not compared: {clean(unknown[0])}{more}")
    if format is Format.TEXT:
        count = f"{comparison.count} difference{'' if comparison.count == 1 else 's'}"
        say(f"Found {count}" if comparison.count else "No difference")
    raise typer.Exit(1 if exit_code and comparison.count else 0)


def _both(sources: list[Path]) -> tuple[Path | None, Path]:
    """The source of each side; None: the installed vLLM. Raises UsageError for more than two."""
    if len(sources) > 2:
        raise UsageError(f"`--vllm-source` is named at most twice; found {len(sources)}")
    return (sources[0] if len(sources) > 1 else None), sources[-1]


def _versions(sources: list[Path], asked: str | None) -> tuple[str, str]:
    """The version of each side. Raises UsageError if A is not of the version that is asked for."""
    from specserve.checks.oracle import vllm_to_ask
    from specserve.vllm.versions import table

    a, b = (vllm_to_ask(source).version for source in _both(sources))
    if asked and table(asked).minor != table(a).minor:
        hint = "name its wheel by a first `--vllm-source`"
        raise UsageError(f"`--vllm {asked}`: A would run on vLLM {a}", hint=hint)
    return a, b


def _with_effective(comparison: Comparison, taken: tuple[Taken, Taken], sources: list[Path]) -> Comparison:
    """The comparison with what the two vLLMs make of the launch. Raises FactError if one refuses it."""
    from dataclasses import replace

    from specserve.checks.effective import effective, effective_differences

    a, b = (
        effective(item.profile, source=source, offline=True)
        for item, source in zip(taken, _both(sources), strict=True)
    )
    return replace(comparison, effective=effective_differences(a, b))


def _planned(a: Taken, b: Taken, *, versions: tuple[str | None, str | None]) -> tuple[Side, Side]:
    """The launches of both, by one vLLM version where they have one in common; not for this machine."""
    from specserve.plan.compare import Side
    from specserve.plan.launch import launch
    from specserve.plan.locking import locked
    from specserve.vllm.versions import in_range, known_versions, table

    ranges = [in_range(item.profile.vllm or "") or known_versions() for item in (a, b)]
    common = [version for version in ranges[0] if version in ranges[1]]
    named = [item.profile.hardware.accelerator for item in (a, b) if item.profile.hardware]
    sides = []
    for item, known, vllm in zip((a, b), ranges, versions, strict=True):
        profile = locked(item.profile, item.lock) if item.lock else item.profile
        version = vllm or (common or list(known))[-1]
        # a command names no hardware: it is for the machine of the other side
        cpu = "+cpu" in version or "cpu" in ([profile.hardware.accelerator] if profile.hardware else named)
        plan = launch(profile, table=table(version), platform="cpu" if cpu else "cuda", version=version)
        sides.append(Side(profile, plan))
    return sides[0], sides[1]


def _compared(
    taken: tuple[Taken, Taken], sides: tuple[Side, Side], *, models: bool
) -> tuple[Comparison, list[str]]:
    """The comparison, and why a part of it was not made."""
    from dataclasses import replace

    from specserve.plan.compare import compare

    comparison = compare(*sides)
    if not models:
        return comparison, []
    from specserve.checks.compare import At, compare_known

    a, b = (
        At(item.profile, side.plan.vllm, locked=item.lock is not None)
        for item, side in zip(taken, sides, strict=True)
    )
    facts, memory, why = compare_known(a, b)
    return replace(comparison, models=facts, memory=memory), why
