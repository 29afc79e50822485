"""What `specserve watch` looks at, for how long, and where it shows it. Reckons nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from specserve.errors import Interrupted, SpecserveError, UsageError
from specserve.measure.watch.verdict import State
from specserve.report.console import filled, is_terminal, out, say, styled

if TYPE_CHECKING:
    from specserve.measure.watch.exporter import Exporter
    from specserve.measure.watch.watch import Report
    from specserve.profile.schema import Profile
    from specserve.report.watch import Screen
    from specserve.serve.detached.registry import Record
    from specserve.serve.requests import Endpoint


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds. Without `for_s` it ends with Ctrl-C."""

    interval_s: float
    window_s: float
    for_s: float | None

    def checked(self, *, once: bool) -> Times:
        """The same, with `--once` as one window. Raises UsageError for what holds no two readings."""
        if once and self.for_s is not None:
            raise UsageError(
                "`--once` and `--for` both say when it ends", hint="`--once` ends after one window"
            )
        times = dataclasses.replace(self, for_s=self.window_s) if once else self
        if times.interval_s > min(times.window_s, times.for_s or times.window_s):
            raise UsageError(
                f"`--interval` is {times.interval_s:g} s, longer than the time to look at",
                hint="a figure needs two readings: `--interval 1s`, or more time",
            )
        return times


class Watched:
    """A server by its name or URL, and the profile that it is held to. Raises UsageError, ProfileError, FactError."""

    def __init__(
        self, server: str | None, *, profile: str | None, api_key_env: str | None, model: str | None
    ) -> None:
        from specserve.serve.detached.registry import is_address, names, refuse_file

        if server is not None:
            refuse_file(server)
        has_url = server is not None and is_address(server)
        known = names() if server is None else []
        self._name = server if not has_url else None
        if server is None and len(known) == 1:
            self._name = known[0]
        self._url = server if has_url else None
        self._api_key_env = api_key_env
        self.model = model
        self.record = self._record()
        self.endpoint = self._found()
        self.is_other_arm = False
        """Whether it is an alternative of its profile, or its baseline: those promise nothing."""
        self.profile = self._profile(profile)

    def _record(self) -> Record | None:
        if self._name is None:
            return None
        from specserve.serve.detached.registry import only_server

        return only_server(self._name)

    def _found(self) -> Endpoint:
        from specserve.serve.detached.registry import DEFAULT_URL
        from specserve.serve.requests import endpoint

        url = self.record.url if self.record is not None else self._url or DEFAULT_URL
        return endpoint(url, api_key_env=self._api_key_env)

    def locate(self) -> Endpoint:
        """Where it is by now: a detached server that was started anew may have another port."""
        with contextlib.suppress(SpecserveError):  # it was stopped: then it is waited for where it was
            self.record = self._record()
            self.endpoint = self._found()
        return self.endpoint

    def _profile(self, path: str | None) -> Profile | None:
        from specserve.profile.load import load_profile

        if path is not None:
            return load_profile(path)
        if self.record is None or self.record.profile == "-":
            return None
        with contextlib.suppress(SpecserveError):  # moved or changed since; nobody asked for it here
            profile = load_profile(self.record.profile, settings=self.record.arm.settings)
            served = _served(profile, self.record)
            self.is_other_arm = served is not profile
            return served
        return None

    @property
    def labels(self) -> dict[str, str]:
        """The names of the deployment: profile and fingerprint, empty where they are not known."""
        name = self.profile.name if self.profile is not None else self.record.name if self.record else ""
        if self.record is not None:
            return {"profile": name, "fingerprint": self.record.fingerprint}
        if self.profile is None:
            return {"profile": name, "fingerprint": ""}
        from specserve.plan.locking import at_lock
        from specserve.profile.fingerprint import fingerprint

        locked, _ = at_lock(self.profile, use_lock=True, needed=False)
        return {"profile": name, "fingerprint": fingerprint(locked)}


def _served(profile: Profile, record: Record) -> Profile:
    """What a detached server serves of its profile, without promises: they are those of the profile's own arm."""
    from specserve.profile.load import with_alternative

    is_baseline = record.method is None and profile.speculation is not None
    if record.arm.alternative is None and not is_baseline:
        return profile
    served = with_alternative(profile, record.arm.alternative, baseline=is_baseline)
    return dataclasses.replace(served, expect=())


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


def watching(watched: Watched, times: Times, *, shown: Shown, exporter: str | None) -> Report:
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


def _announce(watched: Watched, times: Times) -> None:
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
