"""A server that is watched: how it is found, and its reports one after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from specserve.errors import Interrupted, SpecserveError, UsageError
from specserve.measure.watch.watch import MetricsSource, Watch, WatchReport, looks

if TYPE_CHECKING:
    from specserve.measure.watch.exporter import Exporter
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


class WatchedServer:
    """A server by its name or URL, and the profile that judges it. Raises UsageError, ProfileError, FactError."""

    def __init__(self, request: WatchRequest) -> None:
        self.request = request
        self._server = request.server
        self.record: Record | None = None
        self.endpoint = self._find()
        self.is_other_arm = False
        """Whether it is an alternative of its profile, or its baseline: those promise nothing."""
        self.profile = self._profile(request.profile)
        self.source = MetricsSource(self.locate, model=request.model)

    def _find(self) -> Endpoint:
        from specserve.serve.detached.registry import locate
        from specserve.serve.requests import endpoint

        url, self.record = locate(self._server)
        self._server = self.record.name if self.record is not None else url
        return endpoint(url, api_key_env=self.request.api_key_env)

    def locate(self) -> Endpoint:
        """Return where it is by now: a detached server that was restarted may have another port."""
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
            return dataclasses.replace(served, expect=())
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
        from specserve.profile.schema import fingerprint

        locked, _ = at_lock(self.profile, use_lock=True, needed=False)
        return {"profile": name, "fingerprint": fingerprint(locked)}

    def reports(self, export: Exporter | None = None) -> Iterator[WatchReport]:
        """Watch until the time is over: a report for each look, and the final one. Raises UsageError.

        The iterator raises Interrupted on SIGTERM, KeyboardInterrupt.
        """
        request = self.request
        if request.interval_s > min(request.window_s, request.for_s or request.window_s):
            raise UsageError(
                f"`--interval` is {request.interval_s:g} s, which is longer than the time that is measured",
                hint="a measurement needs two readings: use `--interval 1s`, or a longer window",
            )
        watch = Watch(self.source.read, window_s=request.window_s, profile=self.profile)
        return self._looked_at(watch, export)

    def _looked_at(self, watch: Watch, export: Exporter | None) -> Iterator[WatchReport]:
        request = self.request
        with ended_by_sigterm():
            for report in looks(watch, interval_s=request.interval_s, for_s=request.for_s):
                if export is not None and not report.is_final:
                    export.show(report)
                yield report


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A terminal gets its cursor back, and the exporter ends, also if a service manager stops it."""

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", signal_number=number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
