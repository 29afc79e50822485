"""`specserve watch`: whether speculation still works on a running server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specserve.measure.watch.watch import Report


class Format(StrEnum):
    """How it is written."""

    TEXT = "text"
    JSON = "json"


def watch(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|URL",
            show_default=False,
            help="Default: the only detached server, else port 8000 of this host.",
        ),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            show_default=False,
            help="Whose `expect` it is held to. Default: that of the detached server.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One window, one report, and end.")] = False,
    for_time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default=False,
            help="End after 60s, 10m or 1h, with a report of all of it.",
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="Figures are over so much of the past.")
    ] = "60s",
    interval: Annotated[str, typer.Option(metavar="TIME", help="From reading to reading.")] = "5s",
    exporter: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            show_default=False,
            help="Serve the figures as Prometheus gauges there; without a host, on 127.0.0.1.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Where the metrics hold several served models."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Variable that holds a key for /metrics, where a gateway wants one; vLLM wants none.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 where it is undecided, too.")] = False,
    format: Annotated[Format, typer.Option(help="json: one object per line and reading.")] = Format.TEXT,
) -> int:
    """Watch a running server: acceptance, verdict, advice.

    Tells what vLLM's metrics gained over a window, never since the start. A figure of acceptance needs 200 drafts, a
    verdict 1,000 drafts and 30 finished requests. A server that is missing or starts anew is waited for.

    With --once or --for the exit code is 1 where the draft is dead, or where a promise of the profile is missed with
    its whole 95 % interval; 2 where no server answered.

    \b
    specserve watch                       live, until Ctrl-C
    specserve watch demo --once           one minute, one report
    specserve watch http://127.0.0.1:8001 --profile demo.yaml --for 10m --strict
    specserve watch demo --exporter 9109  for Prometheus
    specserve watch demo --for 1h --format json > watch.jsonl
    """
    from specserve.cli.durations import seconds
    from specserve.cli.watching import Shown, Times, Watched, watching

    times = Times(
        interval_s=seconds(interval, option="--interval", least_s=0.2, most_s=3600.0),
        window_s=seconds(window, option="--window", least_s=1.0, most_s=7 * 86400.0),
        for_s=None if for_time is None else seconds(for_time, option="--for", least_s=1.0),
    ).checked(once=once)
    watched = Watched(server, profile=profile, api_key_env=api_key_env, model=model)
    shown = Shown(watched, is_json=format is Format.JSON, only_last=once)
    return _code(watching(watched, times, shown=shown, exporter=exporter), strict=strict)


def _code(last: Report, *, strict: bool) -> int:
    if last.trouble is not None and last.figures is None:
        raise last.trouble
    return 1 if last.has_failed or (strict and last.is_undecided) else 0
