"""Watching one server: found by its name or URL, judged by its profile, for how long, and who sees the reports."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from specserve.errors import Interrupted, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.watch.exporter import Exporter
    from specserve.measure.watch.watch import WatchReport
    from specserve.profile.schema import Profile
    from specserve.serve.detached.registry import Record
    from specserve.serve.requests import Endpoint


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Which server to watch, and how. Without `for_s` it ends with Ctrl-C."""

    server: str | None
    profile: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    interval_s: float = 5.0
    window_s: float = 60.0
    for_s: float | None = None
    exporter: str | None = None
    """`[HOST:]PORT` of the Prometheus exporter."""


class WatchOutlet(Protocol):
    """Shows what watching finds; a context manager while reports come."""

    def begin(self, watched: WatchedServer, request: WatchRequest) -> None:
        """Say what is watched."""

    def exporting(self, host: str, port: int) -> None:
        """Say where the exporter listens."""

    def show(self, report: WatchReport) -> None:
        """Show one report; called for each reading."""

    def __enter__(self) -> object:
        """Reports come."""

    def __exit__(self, *exception: object) -> None:
        """No more reports come."""


def run_watch(request: WatchRequest, view: WatchOutlet) -> WatchReport:
    """Watch until the time is over; the last report.

    Raises UsageError, ProfileError, FactError, Interrupted on SIGTERM, KeyboardInterrupt.
    """
    from specserve.measure.watch.watch import MetricsSource, Watch, looks

    least_s = min(request.window_s, request.for_s or request.window_s)
    if request.interval_s > least_s:
        raise UsageError(
            f"`--interval` is {request.interval_s:g} s, longer than the time to look at",
            hint="a figure needs two readings: `--interval 1s`, or more time",
        )
    watched = WatchedServer(request)
    source = MetricsSource(watched.locate, model=request.model)
    watch = Watch(source.read, window_s=request.window_s, profile=watched.profile)
    last: WatchReport | None = None
    with _ended_by_sigterm(), _exporting(request.exporter, watched, view) as export:
        view.begin(watched, request)
        with view:
            for last in looks(watch, interval_s=request.interval_s, for_s=request.for_s):
                if export is not None and not last.is_final:
                    export.show(last)
                view.show(last)
    assert last is not None
    return last


class WatchedServer:
    """A server by its name or URL, and the profile that judges it. Raises UsageError, ProfileError, FactError."""

    def __init__(self, request: WatchRequest) -> None:
        from specserve.serve.detached.registry import is_address, names, refuse_file

        server = request.server
        if server is not None:
            refuse_file(server)
        has_url = server is not None and is_address(server)
        running = names() if server is None else []
        self._name = running[0] if len(running) == 1 else None if has_url else server
        self._url = server if has_url else None
        self._api_key_env = request.api_key_env
        self.record: Record | None = None
        self.endpoint = self._find()
        self.is_other_arm = False
        """Whether it is an alternative of its profile, or its baseline: those promise nothing."""
        self.profile = self._profile(request.profile)

    def _find(self) -> Endpoint:
        from specserve.serve.detached.registry import DEFAULT_URL, only_server
        from specserve.serve.requests import endpoint

        if self._name is not None:
            self.record = only_server(self._name)
        url = self.record.url if self.record is not None else self._url or DEFAULT_URL
        return endpoint(url, api_key_env=self._api_key_env)

    def locate(self) -> Endpoint:
        """Where it is by now: a detached server that was restarted may have another port."""
        with contextlib.suppress(SpecserveError):  # it was stopped: watch waits for it at its old address
            self.endpoint = self._find()
        return self.endpoint

    def _profile(self, path: str | None) -> Profile | None:
        from specserve.profile.load import load_profile, with_alternative

        if path is not None:
            return load_profile(path)
        record = self.record
        if record is None or record.profile == "-":
            return None
        with contextlib.suppress(SpecserveError):  # moved or changed since; nobody named it here
            profile = load_profile(record.profile, settings=record.arm.settings)
            is_baseline = record.method is None and profile.speculation is not None
            self.is_other_arm = record.arm.alternative is not None or is_baseline
            if not self.is_other_arm:
                return profile
            served = with_alternative(profile, record.arm.alternative, baseline=is_baseline)
            return dataclasses.replace(
                served, expect=()
            )  # promises are those of the profile's own speculation
        return None

    @property
    def labels(self) -> dict[str, str]:
        """The names of the deployment: profile and fingerprint, empty if they are not known."""
        name = self.profile.name if self.profile is not None else self.record.name if self.record else ""
        if self.record is not None:
            return {"profile": name, "fingerprint": self.record.fingerprint}
        if self.profile is None:
            return {"profile": name, "fingerprint": ""}
        from specserve.plan.locking import at_lock
        from specserve.profile.fingerprint import fingerprint

        locked, _ = at_lock(self.profile, use_lock=True, needed=False)
        return {"profile": name, "fingerprint": fingerprint(locked)}


@contextlib.contextmanager
def _exporting(address: str | None, watched: WatchedServer, view: WatchOutlet) -> Iterator[Exporter | None]:
    if address is None:
        yield None
        return
    from specserve.measure.watch.exporter import Exporter

    host, _, port = address.rpartition(":")  # `9109`, `127.0.0.1:9109`, `[::1]:9109`
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(f"`--exporter` is no address: {address!r}", hint="such as 127.0.0.1:9109, or 9109")
    with Exporter(**watched.labels) as export:
        view.exporting(host, export.listen(host, int(port)))
        yield export


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A terminal gets its cursor back, and the exporter ends, also if a service manager stops it."""

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", signal_number=number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
