"""`specserve diff`: what differs between two launches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specserve.cli.options import Format, Settings, TextOrJson, flag, text_option
from specserve.errors import UsageError


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
        str | None, text_option("NAME", "Compare A with this one of its `alternatives`.")
    ] = None,
    baseline: Annotated[bool, flag("--baseline", "Compare A with A without speculation.")] = False,
    models: Annotated[
        bool,
        typer.Option(
            "--models/--no-models", help="Also compare models and memory, if they can be read here."
        ),
    ] = True,
    vllm: Annotated[
        str | None,
        text_option("VERSION", "Compare for this vLLM version (default: the newest that both allow)."),
    ] = None,
    vllm_source: Annotated[
        list[Path] | None,
        text_option(
            "WHEEL|DIR",
            (
                "Compare an upgrade: B on this vLLM, A on the installed one. Given twice: A on the first, B on "
                "the second."
            ),
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
    from specserve.report.console import clean, out, say
    from specserve.report.difference import Named, difference_json, difference_text
    from specserve.serve.detached.processes import running_command

    sources = vllm_source or []
    if len(sources) > 2:
        raise UsageError(f"`--vllm-source` can be given at most twice; found {len(sources)}")
    words = [a, *(b or [])]
    taken = both_sides(
        words, alternative, baseline, settings or (), is_alone=bool(sources), running=running_command
    )
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
        say(f"models and memory are not compared: {clean(unknown[0])}{more}")
    if format is TextOrJson.TEXT:
        count = f"{comparison.count} difference{'' if comparison.count == 1 else 's'}"
        say(f"Found {count}" if comparison.count else "No difference")
    raise typer.Exit(1 if exit_code and comparison.count else 0)
