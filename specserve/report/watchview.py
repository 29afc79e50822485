"""Reports of `watch` as they come: a live screen on a terminal, lines in a pipe, JSON lines."""

from __future__ import annotations

import json
import os
import sys

from specserve.measure.watch.server import WatchedServer, WatchRequest
from specserve.measure.watch.verdict import WatchState
from specserve.measure.watch.watch import WatchReport
from specserve.report import watch
from specserve.report.console import filled, is_terminal, out, say, styled


class WatchLines:
    """Shows each report, or the last alone (`only_last`)."""

    def __init__(self, *, is_json: bool, only_last: bool) -> None:
        self._is_json = is_json
        self._only_last = only_last
        has_screen = is_terminal(sys.stdout) and os.environ.get("TERM") not in {None, "", "dumb"}
        self._screen = watch.Screen() if has_screen and not is_json and not only_last else None
        self._watched: WatchedServer | None = None
        self._state: WatchState | None = None
        self._trouble = ""

    def __enter__(self) -> WatchLines:
        if self._screen is not None:
            self._screen.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._screen is not None:
            self._screen.__exit__(*exception)

    def begin(self, watched: WatchedServer, request: WatchRequest) -> None:
        """Say what is watched."""
        self._watched = watched
        how_long = f" for {request.for_s:g} s" if request.for_s is not None else ""
        say(f"watching {watched.endpoint.root}{how_long}: measured over the last {request.window_s:g} s")
        if watched.profile is not None and watched.profile.expect:
            say(f"held to the promises of `{watched.profile.file}`")
        elif watched.profile is not None and watched.is_other_arm:
            say(f"held to no promise: `expect` is for what `{watched.profile.file}` itself speculates with")

    def exporting(self, host: str, port: int) -> None:
        """Say where the exporter listens."""
        shown = f"[{host}]" if ":" in host else host
        say(f"metrics at http://{shown}:{port}/metrics")
        if host not in {"127.0.0.1", "::1", "localhost"}:
            say(f"{styled('warning', 'yellow')}: whoever reaches {shown}:{port} can read them")

    def show(self, report: WatchReport) -> None:
        """Show one report."""
        assert self._watched is not None
        url = self._watched.endpoint.root
        if self._screen is not None:
            self._screen.show(report, url=url)
            return
        self._say_trouble(report)
        if self._only_last and not report.is_final:
            return
        if self._is_json:
            out(json.dumps(watch.as_json(report, url=url, labels=self._watched.labels)))
        elif report.is_final:
            _print_block(report, url=url)
        else:
            self._print_line(report)

    def _say_trouble(self, report: WatchReport) -> None:
        """To stderr, when it comes and when it goes."""
        trouble = report.trouble.message if report.trouble is not None else ""
        if trouble != self._trouble and not report.is_final:
            say(
                f"{styled('warning', 'yellow')}: {trouble}; waiting for it" if trouble else "it answers again"
            )
            self._trouble = trouble
        if report.restarted:
            say(f"{styled('warning', 'yellow')}: the server was restarted: a new window begins")

    def _print_line(self, report: WatchReport) -> None:
        if report.trouble is not None:
            return  # said on stderr
        if report.figures is not None and report.verdict.state is not WatchState.IDLE:
            out(watch.line(report))  # that it idles is said once
        if report.verdict.state is not self._state:
            for text in watch.verdict_lines(report):
                out(filled(text, lead=f"{watch.clock(report)}  ", stream=sys.stdout))
        self._state = report.verdict.state


def _print_block(report: WatchReport, *, url: str) -> None:
    """All of it; nothing if no server answered: the error that ends the command says so."""
    if report.figures is None and report.trouble is not None:
        return
    for label, text in watch.block(report, url=url):
        out(filled(text, lead=f"{label:<13}", stream=sys.stdout))
    head, *rest = watch.verdict_lines(report)
    out("\n" + watch.coloured(filled(head, lead="", stream=sys.stdout), report, stream=sys.stdout))
    for text in rest:
        out(filled(text, lead="", stream=sys.stdout))
