"""`specserve watch`: whether speculation still works on a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import ApiKeyEnv, Format, TextOrJson, flag, text_option
from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.measure.watch.watch import WatchedServer, WatchReport, WatchRequest

_WINDOW_S = 60.0
UNDECIDED_CODE = 4
"""Exit code of a comparison that ended before it was decided: a pipeline must neither promote nor roll back."""


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
    against: Annotated[
        str | None,
        text_option(
            "NAME|URL",
            "Compare the server, a canary, with this one until it is decided whether the canary may replace it.",
        ),
    ] = None,
    margin: Annotated[
        list[str] | None,
        text_option(
            "KEY=VALUE",
            "How much worse the canary may be: acceptance=0.05, tpot=0.05 (as a share), errors=0.01 (the defaults); "
            "repeatable.",
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
    exporter: Annotated[
        str | None,
        text_option(
            "[HOST:]PORT",
            "Serve the figures as Prometheus gauges at this address; without a host, on 127.0.0.1.",
        ),
    ] = None,
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

    With --against, watch compares acceptance, TPOT and errors of two servers under their own traffic until it is
    decided. Exit codes: 0 for PROMOTE, 1 for ROLL BACK, 4 if it is not decided when --for ends.

    \b
    specserve watch                       live, until Ctrl-C
    specserve watch demo --once           one minute, one report
    specserve watch http://127.0.0.1:8001 --profile demo.yaml --for 10m --strict
    specserve watch demo --exporter 9109  for Prometheus
    specserve watch demo --for 1h --format json > watch.jsonl
    specserve watch canary --against demo --for 2h
    """
    from specserve.measure.values import seconds
    from specserve.measure.watch.watch import WatchedServer, WatchRequest

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
    is_json = format is TextOrJson.JSON
    if against is not None or margin:
        given = {"profile": profile, "once": once, "exporter": exporter, "window": window_s != _WINDOW_S}
        return _compare(request, against, margin or [], given=given, is_json=is_json, strict=strict)
    last = _watch(WatchedServer(request), exporter, is_json=is_json, only_last=once)
    if last.trouble is not None and last.figures is None:
        raise last.trouble
    return 1 if last.has_failed or (strict and last.is_undecided) else 0


def _watch(watched: WatchedServer, exporter: str | None, *, is_json: bool, only_last: bool) -> WatchReport:
    """Watch one server; the last report."""
    from specserve.measure.watch.exporter import Exporter
    from specserve.report.watch import say_exporter, show_watch

    if exporter is None:
        return show_watch(watched, watched.reports(), is_json=is_json, only_last=only_last)
    with Exporter(**watched.labels) as export:
        reports = watched.reports(export.show)
        say_exporter(*export.listen_at(exporter))
        return show_watch(watched, reports, is_json=is_json, only_last=only_last)


def _compare(
    request: WatchRequest,
    against: str | None,
    margins: list[str],
    *,
    given: Mapping[str, object],
    is_json: bool,
    strict: bool,
) -> int:
    """Compare two servers; the exit code. `given`: the options that a comparison does not take."""
    from specserve.measure.watch.compare import CanaryState, compare_servers, compared_servers, read_margins
    from specserve.report.canary import show_comparison

    if against is None:
        raise UsageError("`--margin` needs `--against`: it is about a comparison of two servers")
    for name, value in given.items():
        if value:
            hint = f"leave `--{name}` out"
            raise UsageError(f"`--{name}` cannot be combined with `--against`", hint=hint)
    allowed = read_margins(margins)
    servers = compared_servers(request, against)
    urls = servers[0].endpoint.root, servers[1].endpoint.root
    last = show_comparison(compare_servers(servers, allowed), urls=urls, is_json=is_json)
    undecided = 1 if strict else UNDECIDED_CODE
    return {CanaryState.PROMOTE: 0, CanaryState.ROLL_BACK: 1}.get(last.state, undecided)
