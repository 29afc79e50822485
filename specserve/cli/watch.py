"""`specserve watch`: whether speculation still works on a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import ApiKeyEnv, Format, TextOrJson, flag, text_option
from specserve.errors import UsageError

_WINDOW_S = 60.0


def watch(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|URL",
            show_default=False,
            help="A detached server, or the URL of any vLLM server. Default: the only detached server, else port 8000 "
            "on this host.",
        ),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        text_option(
            "PROFILE",
            "Judge by the promises (`expect`) of this profile (default: the detached server's own).",
        ),
    ] = None,
    once: Annotated[bool, flag("--once", "Measure one window, print one report and exit.")] = False,
    for_time: Annotated[
        str | None,
        text_option("TIME", "Stop after this long (60s, 10m, 1h) with a report of the whole time.", "--for"),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="Length of the window that is measured.")
    ] = f"{_WINDOW_S:g}s",
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Read the server's metrics this often.")
    ] = "5s",
    model: Annotated[
        str | None, text_option("NAME", "Watch this model, if the server's metrics hold several.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    strict: Annotated[
        bool, flag("--strict", "Exit with 1 also if anything is undecided, or no request came.")
    ] = False,
    format: Format = TextOrJson.TEXT,
) -> int:
    """Watch a running server: acceptance, verdict, advice.

    watch sends no requests. It reads vLLM's metrics and measures the traffic of others over a window. The limit is a
    promise of the profile, or the mean acceptance length of a dead draft. watch gives a verdict as soon as the whole
    95 % confidence interval of the acceptance lies on one side of the limit; until then the state is UNDECIDED. If the
    server is missing or restarts, watch waits for it.

    Exit codes with --once or --for: 1 if the draft is dead, or if the whole interval of a figure lies outside of what
    the profile's `expect` promises; 2 if no server answered.

    \b
    specserve watch                       live, until Ctrl-C
    specserve watch demo --once           one minute, one report
    specserve watch http://127.0.0.1:8001 --profile demo.yaml --for 10m --strict
    specserve watch demo --for 1h --format json > watch.jsonl
    """
    from specserve.measure.values import seconds
    from specserve.measure.watch.watch import WatchedServer, WatchRequest
    from specserve.report.watch import show_watch

    if once and for_time is not None:
        raise UsageError(
            "`--once` and `--for` cannot be combined: each of them says when the command ends",
            hint="`--once` ends after one window",
        )
    window_s = seconds(window, option="--window", least_s=1.0, most_s=7 * 86400.0)
    for_s = None if for_time is None else seconds(for_time, option="--for", least_s=1.0)
    request = WatchRequest(
        server,
        profile=profile,
        model=model,
        api_key_env=api_key_env,
        interval_s=seconds(interval, option="--interval", least_s=0.2, most_s=3600.0),
        window_s=window_s,
        for_s=window_s if once else for_s,
    )
    watched = WatchedServer(request)
    is_json = format is TextOrJson.JSON
    last = show_watch(watched, watched.reports(), is_json=is_json, only_last=once)
    if last.trouble is not None and last.figures is None:
        raise last.trouble
    return 1 if last.has_failed or (strict and last.is_undecided) else 0
