"""`specserve watch`: whether speculation still works on a running server."""

from __future__ import annotations

import signal
from typing import Annotated, NoReturn

import typer

from specserve.cli.options import Format, Server, Verbose, flag, option
from specserve.errors import Interrupted

_READ_EVERY_S = 5.0
_PROFILE = "Judge by the promises (`expect`) of this profile (default: the detached server's own)."
_ONCE = "Measure one window, print one report and exit."
_WINDOW = "Length of the window that is measured (default: 60s)."
_STRICT = "Exit with 1 for what is not decided, and with 2 if the server's profile is gone."


def watch(
    server: Server = None,
    *,
    profile: Annotated[str | None, option("PROFILE", _PROFILE, "--profile")] = None,
    once: Annotated[bool, flag("--once", _ONCE)] = False,
    window: Annotated[str, option("TIME", _WINDOW, "--window")] = "60s",
    strict: Annotated[bool, flag("--strict", _STRICT)] = False,
    verbose: Verbose = False,
    format: Format = "text",
) -> None:
    """Watch a running server: verdict, its interval, and what to do.

    watch sends no requests. It reads vLLM's metrics and measures the traffic of others over a
    window. A promise of the profile is judged as soon as the whole 95 % confidence interval lies on
    one side of it; until then the state is UNDECIDED. If the server goes away or restarts, watch
    waits for it.

    Exit codes with --once: 1 if the draft is dead, or if the whole interval of a figure lies
    outside of what the profile's `expect` promises; 2 if no server answered, and with --strict if
    the server's profile cannot be read.

    \b
    specserve watch                live, until Ctrl-C
    specserve watch demo --once    one minute, one report
    specserve watch URL --profile demo.yaml --once --window 10m --strict
    specserve watch demo --format json > watch.jsonl
    """
    from specserve.measure.values import seconds
    from specserve.measure.watch import WatchedServer, reports
    from specserve.report.watch import show_watch

    window_s = seconds(window, option="--window", least_s=1.0)
    interval_s = min(_READ_EVERY_S, max(0.2, window_s / 12))
    watched = WatchedServer(server, profile=profile)
    if strict and watched.profile_error is not None:
        raise watched.profile_error

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", exit_code=128 + number)

    before = signal.signal(signal.SIGTERM, end)  # a live screen gives the cursor back
    try:
        found = reports(watched, window_s=window_s, interval_s=interval_s, once=once)
        last = show_watch(watched, found, is_json=format == "json", only_last=once, verbose=verbose)
    finally:
        signal.signal(signal.SIGTERM, before)
    if last.trouble is not None and last.window is None:
        raise last.trouble
    if last.verdict.level == "bad" or (strict and last.is_undecided):
        raise typer.Exit(1)
