"""`specserve verify`: whether a server's text is still its target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.errors import UsageError
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

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
            help="A detached server, the URL of any vLLM server, or a profile to start, verify and stop. "
            "Default: the only detached server, else port 8000 on this host.",
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
            help="Verify at this temperature; repeatable. Default: 0 and 0.7.",
        ),
    ] = None,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Request this top-p at temperatures above 0.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, max=20, help="The same for top-k; 0: all tokens.")] = 0,
    presence_penalty: Annotated[
        float, typer.Option(min=-2.0, max=2.0, help="Request this penalty at temperatures above 0.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(min=-2.0, max=2.0, help="Request this penalty at temperatures above 0.")
    ] = 0.0,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="URL|NAME",
            show_default=False,
            help="Also compare the greedy text with that of another server.",
        ),
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="Also test JSON schemas, tool calls, stop strings, …"),
    ] = True,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.jsonl",
            show_default=False,
            help="Use the prompts of this file: lines `{prompt}` or `{messages}`, 64 at most. "
            "Default: 28 that ship with specserve.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=86400.0,
            help="Stop measuring after about this long; more time excludes smaller faults.",
        ),
    ] = 60.0,
    max_tokens: Annotated[int, typer.Option(min=8, max=4096, help="Longest completion, in tokens.")] = 128,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Concurrent requests.")] = 8,
    tie_tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Accept a greedy token this many nats less likely than the most likely one.",
        ),
    ] = 0.25,
    model: Annotated[
        str | None, typer.Option(show_default=False, help="Verify this served model. Default: the first.")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Environment variable that holds the server's key."
        ),
    ] = None,
    alternative: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Start this one of the profile's `alternatives`."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Override a value of the profile; repeatable.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Start the profile's server on this port; 0: a free one.")
    ] = 0,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", show_default=False, help="Start the profile on these devices: `0,1` or UUIDs."
        ),
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Start the profile even if the rules object.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 1 for anything but LOSSLESS (and SAME with --against)."),
    ] = False,
    format: Annotated[Format, typer.Option(help="Print a report, or JSON for scripts.")] = Format.TEXT,
) -> None:
    """Verify that a server's text is still its target's own.

    It takes one server, no restart and about a minute. The server writes text with speculation, then scores the same
    text by a plain prefill, without speculation and without a cache. At temperature 0 every token must be the
    target's most likely one (near-ties pass). Above 0, tokens must be sampled as often as their probabilities say.

    LOSSY: a fault was found. NO FAULT FOUND: none, and the report says how large a fault the run excludes at 99 %
    confidence. LOSSLESS: the same, and even a temperature wrong by 5 % is excluded. INCONCLUSIVE: nothing could be
    measured. The smoke tests send requests that speculation breaks in practice.

    Exit code 1: LOSSY, a smoke test that is not ok, or other text --against; 2: the server could not be verified;
    else 0.

    \b
    specserve verify http://127.0.0.1:8000
    specserve verify configs/demo.yaml --temperature 0.7
    specserve verify llama70b-8b --against http://10.0.0.7:8000 --format json
    specserve verify --prompts mine.jsonl --top-p 0.9 --seconds 180
    """
    from specserve.measure.verify.prompts import left_out
    from specserve.measure.verify.prompts import prompts as read
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.run import Wish
    from specserve.measure.verify.server import VerifyRequest, Views, run_verification
    from specserve.report.servers import StartView
    from specserve.report.verify import VerifyProgress, verify_json, verify_text

    temperatures = [0.0, 0.7] if temperature is None else temperature
    if against is not None:
        temperatures = [0.0, *temperatures]  # what is compared are greedy texts
    wish = Wish(
        samplings=_samplings(Sampling(1.0, top_p, top_k, presence_penalty, frequency_penalty), temperatures),
        prompts=read(prompts),
        max_tokens=max_tokens,
        concurrency=concurrency,
        limit_s=seconds,
        tie_tolerance=tie_tolerance,
        smoke=smoke,
    )
    asked = VerifyRequest(
        server, against, model, api_key_env, alternative, tuple(settings or ()), port, devices, not no_check
    )
    if prompts is not None and (beyond := left_out(prompts)):
        say(f"{prompts}: the first {len(wish.prompts)} prompts are used, {beyond} are not")
    views = Views(StderrNotices(), VerifyProgress(limit_s=wish.limit_s), StartView)
    found = run_verification(asked, wish, views=views)
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
