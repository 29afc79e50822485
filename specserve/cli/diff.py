"""`specserve diff`: what differs between two launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, Settings, TextOrJson, flag, text_option
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.checks.compare import Compared
    from specserve.plan.compare import Comparison, Side


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
    alternative: Annotated[str | None, text_option("NAME", "B is this alternative of A.")] = None,
    baseline: Annotated[bool, flag("--baseline", "B is A without speculation.")] = False,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="Models and memory too, if they can be read here.")
    ] = True,
    vllm: Annotated[
        str | None, text_option("VERSION", "For this vLLM; default: the newest that both are for.")
    ] = None,
    vllm_source: Annotated[
        list[Path] | None,
        text_option(
            "WHEEL|DIR",
            "B runs on this vLLM, and A on the installed one: an upgrade. Named twice: A, then B.",
        ),
    ] = None,
    format: Format = TextOrJson.TEXT,
    exit_code: Annotated[bool, flag("--exit-code", "Exit code 1 if there is a difference.")] = False,
    settings: Settings = None,
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
    from specserve.report.console import clean, out, say
    from specserve.report.difference import Named, difference_json, difference_text

    taken = _pair([a, *(b or [])], alternative, baseline, settings or (), alone=bool(vllm_source))
    sources = vllm_source or []
    if len(sources) > 2:
        raise UsageError(f"`--vllm-source` is named at most twice; found {len(sources)}")
    comparison, sides, unknown = _compared(taken, vllm, sources, models=models)
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
        say(f"models and memory are not compared: {clean(unknown[0])}{more}")
    if format is TextOrJson.TEXT:
        count = f"{comparison.count} difference{'' if comparison.count == 1 else 's'}"
        say(f"Found {count}" if comparison.count else "No difference")
    raise typer.Exit(1 if exit_code and comparison.count else 0)


def _compared(
    taken: tuple[Compared, Compared], vllm: str | None, sources: list[Path], *, models: bool
) -> tuple[Comparison, tuple[Side, Side], list[str]]:
    """What differs, the two launches, and why models and memory are not compared, if they are not.

    With sources also what the two vLLMs make of the launches. Raises UsageError, FactError.
    """
    from specserve.checks.compare import launches
    from specserve.plan.compare import compare

    if sources:
        from specserve.checks.compare import effective, effective_differences
        from specserve.checks.oracle import vllm_to_ask
        from specserve.vllm.versions import table

        both = (sources[0] if len(sources) > 1 else None), sources[-1]  # None: the installed vLLM
        versions = [vllm_to_ask(source).version for source in both]
        if vllm and table(vllm).minor != table(versions[0]).minor:
            hint = "name its wheel by a first `--vllm-source`"
            raise UsageError(f"`--vllm {vllm}`: A would run on vLLM {versions[0]}", hint=hint)
        sides = launches(*taken, versions=versions)
        a, b = (
            effective(item.profile, source=source, offline=True)
            for item, source in zip(taken, both, strict=True)
        )
        return replace(compare(*sides), effective=effective_differences(a, b)), sides, []
    sides = launches(*taken, versions=(vllm, vllm))
    if not models:
        return compare(*sides), sides, []
    from specserve.checks.compare import compare_known

    facts, memory, why = compare_known(*taken, versions=[side.plan.vllm for side in sides])
    return replace(compare(*sides), models=facts, memory=memory), sides, why


def _pair(
    words: list[str], alternative: str | None, baseline: bool, settings: Iterable[str], *, alone: bool
) -> tuple[Compared, Compared]:
    """Both sides; `alone`: the same launch twice, if no other is named."""
    from specserve.checks.compare import Compared, read_side
    from specserve.profile.load import with_alternative

    def side(words: list[str]) -> Compared:
        command = _running(words[0]) if len(words) == 1 and not Path(words[0]).is_file() else None
        made = read_side(command or words, settings=settings)
        return replace(made, label=f"{words[0]} (running)") if command else made

    first, second = _split(words)
    a = side(first)
    if not alternative and not baseline:
        if not second and not alone:
            hint = "name a second one, or compare with `--alternative`, `--baseline` or `--vllm-source` of the first"
            raise UsageError("`specserve diff` takes two sides; found one", hint=hint)
        return a, side(second) if second else a
    if second:
        raise UsageError("`--alternative` and `--baseline` make B out of A; found a second side")
    arm = f"alternative {alternative}" if alternative else "baseline"
    return a, Compared(
        f"{a.label} ({arm})", with_alternative(a.profile, alternative, baseline=baseline), a.lock
    )


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of each side: a profile is one word, a command several; a second `--` may stand between them."""
    from specserve.convert.invocation import is_command

    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if len(words) <= 2 or is_command(words[1:]):
        return words[:1], words[1:]
    if is_command(words):
        return words, []
    raise UsageError(
        f"`specserve diff` takes two sides; found {len(words)}", hint="a vLLM command stands behind `--`"
    )


def _running(name: str) -> list[str] | None:
    """The command of a detached server as its process has it; None if none has that name."""
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import names, read

    if name not in names():
        return None
    record = read(name)
    if record is None or not Detached(record).is_running() or record.leader is None:
        raise UsageError(f"the server `{name}` does not run", hint="`specserve ps` lists the servers")
    import psutil

    words = psutil.Process(record.leader[0]).cmdline()
    return words[1:] if "python" in Path(words[0]).name else words  # a script's first word is its interpreter
