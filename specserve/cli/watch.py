"""`specserve watch`: whether speculation still works on a running server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from specserve.errors import Interrupted, UsageError
from specserve.measure.watch.verdict import State
from specserve.report.console import filled, is_terminal, out, say, styled

if TYPE_CHECKING:
    from specserve.measure.watch.exporter import Exporter
    from specserve.measure.watch.watch import Report
    from specserve.measure.watch.watched import Watched, WatchTimes
    from specserve.report.watch import Screen


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
            help="A detached server, or the URL of any vLLM server. Default: the only detached server, else port 8000 "
            "on this host.",
        ),
    ] = None,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            show_default=False,
            help="Judge the server by the promises (`expect`) of this profile. Default: that of the detached server.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Measure one window, print one report and exit.")
    ] = False,
    for_time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default=False,
            help="Stop after this long (60s, 10m, 1h) with a report of the whole time.",
        ),
    ] = None,
    window: Annotated[str, typer.Option(metavar="TIME", help="Measure over this much of the past.")] = "60s",
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Read the server's metrics this often.")
    ] = "5s",
    exporter: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            show_default=False,
            help="Serve the figures as Prometheus gauges at this address; without a host, on 127.0.0.1.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, help="Watch this model, if the server's metrics hold several."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Environment variable that holds a key for /metrics, if a gateway asks for one; vLLM does not.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for UNDECIDED and IDLE too.")] = False,
    format: Annotated[
        Format, typer.Option(help="Print text, or a JSON object for each reading.")
    ] = Format.TEXT,
) -> int:
    """Watch a running server: acceptance, verdict, advice.

    It sends no requests: the figures are what vLLM's metrics gained over a window of traffic by others. A verdict is
    given as soon as the 95 % interval of the acceptance is clear of what decides it: a promise of the profile, or the
    mean acceptance length under which the draft is dead. Until then the state is UNDECIDED. If the server is missing
    or restarts, `watch` waits for it.

    With --once or --for the exit code is 1 if the draft is dead or if a promise of the profile is missed with its
    whole interval, 2 if no server answered.

    \b
    specserve watch                       live, until Ctrl-C
    specserve watch demo --once           one minute, one report
    specserve watch http://127.0.0.1:8001 --profile demo.yaml --for 10m --strict
    specserve watch demo --exporter 9109  for Prometheus
    specserve watch demo --for 1h --format json > watch.jsonl
    """
    from specserve.measure.values import seconds
    from specserve.measure.watch.watched import Watched, WatchTimes

    times = WatchTimes(
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


class Shown:
    """Reports as they come: a live screen on a terminal, lines in a pipe, JSON lines; a context manager."""

    def __init__(self, watched: Watched, *, is_json: bool, only_last: bool) -> None:
        self._watched = watched
        self._is_json = is_json
        self._only_last = only_last
        self._screen: Screen | None = None
        self._state: State | None = None
        self._trouble = ""
        if not is_json and not only_last and _takes_screen():
            from specserve.report.watch import Screen

            self._screen = Screen()

    def __enter__(self) -> Shown:
        if self._screen is not None:
            self._screen.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._screen is not None:
            self._screen.__exit__(*exception)

    def show(self, report: Report) -> None:
        """Once for each reading."""
        from specserve.report.watch import as_json

        url = self._watched.endpoint.root
        if self._screen is not None:
            self._screen.show(report, url=url)
            return
        self._tell_trouble(report)
        if self._only_last and not report.is_final:
            return
        if self._is_json:
            out(json.dumps(as_json(report, url=url, labels=self._watched.labels)))
        elif report.is_final:
            self._whole(report, url=url)
        else:
            self._line(report)

    def _tell_trouble(self, report: Report) -> None:
        """On stderr, when it comes and when it goes."""
        trouble = report.trouble.message if report.trouble is not None else ""
        if trouble != self._trouble and not report.is_final:
            if trouble:
                say(f"{styled('warning', 'yellow')}: {trouble}; waiting for it")
            else:
                say("it answers again")
            self._trouble = trouble
        if report.restarted:
            say(f"{styled('warning', 'yellow')}: the server was started anew: the window begins anew")

    def _line(self, report: Report) -> None:
        from specserve.report.watch import clock, line, verdict_lines

        if report.trouble is not None:
            return  # told on stderr
        if report.figures is not None and report.verdict.state is not State.IDLE:
            out(line(report))  # that it idles is told once
        if report.verdict.state is not self._state:
            for text in verdict_lines(report):
                out(filled(text, lead=f"{clock(report)}  ", stream=sys.stdout))
        self._state = report.verdict.state

    def _whole(self, report: Report, *, url: str) -> None:
        from specserve.report.watch import block, coloured, verdict_lines

        if report.figures is None and report.trouble is not None:
            return  # the error that ends the command says it
        rows = block(report, url=url)
        for label, text in rows:
            out(filled(text, lead=f"{label:<13}", stream=sys.stdout))
        head, *rest = verdict_lines(report)
        out("\n" + coloured(filled(head, lead="", stream=sys.stdout), report, stream=sys.stdout))
        for text in rest:
            out(filled(text, lead="", stream=sys.stdout))


def _takes_screen() -> bool:
    return is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}


def watching(watched: Watched, times: WatchTimes, *, shown: Shown, exporter: str | None) -> Report:
    """Watch until the time is over; the last report. Raises Interrupted on SIGTERM, KeyboardInterrupt."""
    from specserve.measure.watch.watch import Source, Watch, looks

    source = Source(watched.locate, model=watched.model)
    watch = Watch(source.read, window_s=times.window_s, profile=watched.profile)
    last: Report | None = None
    with _ended_by_sigterm(), _exporting(exporter, watched) as export, shown:
        _announce(watched, times)
        for report in looks(watch, interval_s=times.interval_s, for_s=times.for_s):
            last = report
            if export is not None and not report.is_final:
                export.show(report)
            shown.show(report)
    assert last is not None
    return last


def _announce(watched: Watched, times: WatchTimes) -> None:
    how_long = f" for {times.for_s:g} s" if times.for_s is not None else ""
    say(f"watching {watched.endpoint.root}{how_long}: measured over the last {times.window_s:g} s")
    if watched.profile is not None and watched.profile.expect:
        say(f"held to the promises of `{watched.profile.file}`")
    elif watched.profile is not None and watched.is_other_arm:
        say(f"held to no promise: `expect` is for what `{watched.profile.file}` itself speculates with")


@contextlib.contextmanager
def _exporting(address: str | None, watched: Watched) -> Iterator[Exporter | None]:
    if address is None:
        yield None
        return
    from specserve.measure.watch.exporter import Exporter

    host, port = _address(address)
    with Exporter(**watched.labels) as export:
        port = export.listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        say(f"metrics at http://{shown}:{port}/metrics")
        if host not in {"127.0.0.1", "::1", "localhost"}:
            say(f"{styled('warning', 'yellow')}: whoever reaches {shown}:{port} can read them")
        yield export


def _address(text: str) -> tuple[str, int]:
    """`9109`, `127.0.0.1:9109`, `[::1]:9109`. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(f"`--exporter` is no address: {text!r}", hint="such as 127.0.0.1:9109, or 9109")
    return host, int(port)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A terminal gets its cursor back, and the exporter its end, also where a service manager stops it."""

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", signal_number=number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
