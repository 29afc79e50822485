"""`specserve verify`: whether a server's text is still its target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.measure.verify.result import Sampling


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"


def verify(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|URL|PROFILE",
            show_default=False,
            help="A detached server, any vLLM server, or a profile that is started for this and stopped again. "
            "Default: the only detached server, else port 8000 here.",
        ),
    ] = None,
    *,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            "-t",
            min=0.0,
            max=2.0,
            show_default=False,
            help="Repeatable; default: 0 and 0.7.",
        ),
    ] = None,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="At temperatures above 0; what is cut off must not come.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, max=20, help="The same; 0: all tokens.")] = 0,
    presence_penalty: Annotated[
        float, typer.Option(min=-2.0, max=2.0, help="At temperatures above 0.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(min=-2.0, max=2.0, help="At temperatures above 0.")
    ] = 0.0,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="URL|NAME",
            show_default=False,
            help="Compare the greedy texts with those of another server too.",
        ),
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="Try JSON schemas, tools, stop strings, … too."),
    ] = True,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.jsonl",
            show_default=False,
            help="Lines `{prompt}` or `{messages}`, 64 at most; default: 28 that ship with specserve.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=86400.0, help="Take no longer than about this.")
    ] = 60.0,
    max_tokens: Annotated[int, typer.Option(min=8, max=4096, help="Of one answer.")] = 128,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at once.")] = 8,
    tie_tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=100.0, help="Nats by which a greedy token may be behind the best one."),
    ] = 0.25,
    model: Annotated[
        str | None, typer.Option(show_default=False, help="Default: the first one served.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Environment variable that holds the server's key."
        ),
    ] = None,
    alternative: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="Of a profile: one of its `alternatives`."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Of a profile: override a value; repeatable.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of a profile's server; 0: a free one.")] = 0,
    devices: Annotated[
        str | None, typer.Option(metavar="LIST", show_default=False, help="Of a profile: `0,1` or UUIDs.")
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Of a profile: start it even if the rules object.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 for INCONCLUSIVE and CLOSE too.")
    ] = False,
    format: Annotated[Format, typer.Option(help="The report, or JSON for scripts.")] = Format.TEXT,
) -> None:
    """Judge whether a server's text is still its target's own.

    One server, no restart, about a minute. It writes with speculation; then it scores what it wrote by a plain
    prefill, where nothing is speculated and nothing cached. At temperature 0 every token must be the target's best
    one, near-ties allowed for; above it, the best token must come as often as its probability says. LOSSLESS, LOSSY
    or INCONCLUSIVE, with a 99 % interval. The smoke tests ask for what speculation breaks in practice.

    Exit code 0: LOSSLESS or INCONCLUSIVE; 1: LOSSY, a smoke test that is not ok, or another text --against; 2: it
    could not be done.

    \b
    specserve verify http://127.0.0.1:8000
    specserve verify configs/demo.yaml --temperature 0.7
    specserve verify llama70b-8b --against http://10.0.0.7:8000 --format json
    specserve verify --prompts mine.jsonl --top-p 0.9 --seconds 180
    """
    from specserve.cli.verifying import Asked, run
    from specserve.measure.verify.prompts import left_out
    from specserve.measure.verify.prompts import prompts as read
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.run import Wish

    temperatures = [0.0, 0.7] if temperature is None else temperature
    if against is not None:
        temperatures = [0.0, *temperatures]  # what is compared are greedy texts
    hot = Sampling(1.0, top_p, top_k, presence_penalty, frequency_penalty)
    wish = Wish(
        samplings=_samplings(hot, temperatures),
        prompts=read(prompts),
        max_tokens=max_tokens,
        concurrency=concurrency,
        limit_s=seconds,
        tie_tolerance=tie_tolerance,
        smoke=smoke,
    )
    asked = Asked(
        server, against, model, api_key_env, alternative, tuple(settings or ()), port, devices, not no_check
    )
    from specserve.report.console import out, say

    beyond = left_out(prompts) if prompts is not None else 0
    if beyond:
        say(f"{prompts}: the first {len(wish.prompts)} prompts are used, {beyond} are not")
    found = run(asked, wish)
    from specserve.report.verify import verify_json, verify_text

    out(verify_json(found) if format is Format.JSON else verify_text(found))
    if found.has_failed or (strict and found.is_open):
        raise typer.Exit(1)


def _samplings(hot: Sampling, temperatures: Sequence[float]) -> tuple[Sampling, ...]:
    """At each temperature. Raises UsageError where settings are given that none of them takes."""
    from specserve.measure.verify.result import Sampling

    if hot != Sampling(1.0) and not any(temperatures):
        raise UsageError(
            "`--top-p`, `--top-k` and the penalties are for temperatures above 0, and 0 is all that is asked for",
            hint="`--temperature 0.7` adds one",
        )
    return tuple(
        replace(hot, temperature=value) if value > 0 else Sampling(0.0)
        for value in dict.fromkeys(temperatures)
    )
