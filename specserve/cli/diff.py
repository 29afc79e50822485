"""`specserve diff`: what differs between two launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.errors import ProfileError, UsageError
from specserve.profile.problems import quoted

if TYPE_CHECKING:
    from specserve.plan.compare import Comparison, Side
    from specserve.profile.schema import Profile

_END = "--"


class Format(StrEnum):
    """How the differences are written."""

    TEXT = "text"
    JSON = "json"


def diff(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B", help="Profiles, PROFILE@REVISION of git; or -- and a vLLM command for B."
        ),
    ],
    *,
    alternative: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="B is this alternative of A."),
    ] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="B is A without speculation.")] = False,
    models: Annotated[
        bool,
        typer.Option("--models/--no-models", help="Compare models and memory too, as far as they are here."),
    ] = True,
    vllm: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            show_default=False,
            help="For this vLLM; default: the newest that both are for.",
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
    """Compare two launches: arguments, environment, models and memory, each value with its place.

    Models are read from directories and the Hub cache only. Exit code 0, as `git diff`; --exit-code makes it 1
    where there is a difference.

    \b
    specserve diff configs/qwen3-8b-draft.yaml configs/qwen3-8b-dflash.yaml
    specserve diff configs/demo.yaml@HEAD~1 configs/demo.yaml
    specserve diff configs/llama70b-8b.yaml --alternative ngram
    specserve diff my.yaml -- vllm serve org/model --max-model-len 8192
    """
    from specserve.report.console import clean, out, say
    from specserve.report.difference import Named, difference_json, difference_text

    a, b = _pair(sides, alternative=alternative, baseline=baseline, settings=settings or ())
    left, right = _planned(a, b, vllm=vllm)
    comparison, unknown = _compared(left, right, models=models)
    one, two = (
        Named(side.profile.file, side.plan.fingerprint, side.plan.vllm, side.plan.platform)
        for side in (left, right)
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


def _pair(
    words: list[str], *, alternative: str | None, baseline: bool, settings: Iterable[str]
) -> tuple[Profile, Profile]:
    """Both profiles. Raises UsageError, ProfileError."""
    from specserve.profile.load import with_alternative

    first, second = _split(words)
    a = _loaded(first, settings)
    if alternative is None and not baseline:
        if not second:
            raise UsageError(
                "`specserve diff` takes two sides; found one",
                hint="or name an arm of it: `--alternative NAME`",
            )
        return a, _loaded(second, settings)
    if second:
        raise UsageError("`--alternative` and `--baseline` make B out of A; found a second side")
    b = with_alternative(a, alternative, baseline=baseline)
    arm = f"alternative {alternative}" if alternative else "baseline"
    return a, replace(b, file=f"{a.file} ({arm})")


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of each side: a profile is one word, a command several; a second `--` may stand between them."""
    if _END in words:
        at = words.index(_END)
        return words[:at], words[at + 1 :]
    if len(words) <= 2 or _is_command(words[1:]):
        return words[:1], words[1:]
    if _is_command(words):
        return words, []
    raise UsageError(
        f"`specserve diff` takes two sides; found {len(words)}", hint="a vLLM command stands behind `--`"
    )


def _is_command(words: list[str]) -> bool:
    """Whether the words are one command from the first on, as in `diff --baseline -- vllm serve M`."""
    if len(words) < 2:
        return False
    from specserve.plan.convert.invocation import invocation
    from specserve.plan.convert.words import argv_words

    return invocation(argv_words(words)[1]) is not None


def _loaded(words: list[str], settings: Iterable[str]) -> Profile:
    if len(words) != 1:
        return _converted(words, settings)
    from specserve.profile.load import load_profile
    from specserve.profile.revision import at_revision, load_at

    if words[0].startswith(("http://", "https://")):
        raise UsageError(
            f"{quoted(words[0])} is no profile: `specserve diff` reads files",
            hint="put the server's command line behind `--`",
        )
    place = at_revision(words[0])
    return load_at(*place, settings=settings) if place else load_profile(words[0], settings=settings)


def _converted(words: list[str], settings: Iterable[str]) -> Profile:
    from specserve.plan.convert.command import profile_of

    profile, findings = profile_of(words, settings=settings)
    if profile is None:
        raise ProfileError("the command is not one that specserve can plan", findings=tuple(findings))
    return profile


def _planned(a: Profile, b: Profile, *, vllm: str | None) -> tuple[Side, Side]:
    """The launches of both, by one vLLM version where they have one in common; not for this machine."""
    from specserve.plan.compare import Side
    from specserve.plan.launch import launch
    from specserve.plan.support import in_range, known_versions, table

    ranges = [in_range(profile.vllm or "") or known_versions() for profile in (a, b)]
    common = [version for version in ranges[0] if version in ranges[1]]
    sides = []
    for profile, known in zip((a, b), ranges, strict=True):
        version = vllm or (common or list(known))[-1]
        cpu = "+cpu" in version or (profile.hardware is not None and profile.hardware.accelerator == "cpu")
        plan = launch(profile, table=table(version), platform="cpu" if cpu else "cuda", version=version)
        sides.append(Side(profile, plan))
    return sides[0], sides[1]


def _compared(a: Side, b: Side, *, models: bool) -> tuple[Comparison, list[str]]:
    """The comparison, and why a part of it was not made."""
    from specserve.plan.compare import compare

    comparison = compare(a, b)
    if not models:
        return comparison, []
    from specserve.checks.compare import compare_known

    facts, memory, why = compare_known(a.profile, b.profile, versions=(a.plan.vllm, b.plan.vllm))
    return replace(comparison, models=facts, memory=memory), why
