"""A server that is watched: how it is found and read, and the metrics that the watch exports."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from specserve.errors import Interrupted, SpecserveError, UsageError
from specserve.measure.watch.figures import NUMBER_DRAFTS, QUANTILES, WatchFigures
from specserve.measure.watch.verdict import Kept, WatchState
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import Counters, EngineName

if TYPE_CHECKING:
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
            f"`--interval` is {request.interval_s:g} s, which is longer than the time that is measured",
            hint="a measurement needs two readings: use `--interval 1s`, or a longer window",
        )
    watched = WatchedServer(request)
    source = MetricsSource(watched.locate, model=request.model)
    watch = Watch(source.read, window_s=request.window_s, profile=watched.profile)
    last: WatchReport | None = None
    with ended_by_sigterm(), _exporting(request.exporter, watched, view) as export:
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

    host, _, port = address.rpartition(":")  # `9109`, `127.0.0.1:9109`, `[::1]:9109`
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise UsageError(
            f"`--exporter` is not an address: {address!r}", hint="write it like 127.0.0.1:9109, or 9109"
        )
    with Exporter(**watched.labels) as export:
        view.exporting(host, export.listen(host, int(port)))
        yield export


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


LABELS = ("profile", "fingerprint", "model_name", "engine")


class Gauge(NamedTuple):
    """One metric of the exporter."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Beyond LABELS."""


UP = Gauge("specserve_up", "1 if the newest reading of the server's metrics succeeded, else 0.")
RESTARTS = Gauge("specserve_server_restarts", "Restarts of the server seen since watching began.")
COLLAPSED = Gauge(
    "specserve_collapsed", "1 if the engine's draft is dead: mean acceptance length below 1.05."
)
PROMISE = Gauge("specserve_promise_kept", "1 kept, 0 missed; absent if it is undecided.", ("promise",))
STATE = Gauge("specserve_verdict", "1 for the state of the verdict.", ("state",))
WINDOW = Gauge("specserve_window_seconds", "Time that the other figures are over.")
RATE = Gauge("specserve_acceptance_ratio", "Accepted over drafted tokens.")
LENGTH = Gauge("specserve_mean_acceptance_length_tokens", "Tokens per step with drafts: 1 to K + 1.")
POSITION = Gauge(
    "specserve_position_acceptance_ratio", "Steps that accepted this draft position.", ("position",)
)
CONDITIONAL = Gauge(
    "specserve_position_conditional_acceptance_ratio",
    "Of the steps that accepted the position before, the share that accepted this one.",
    ("position",),
)
DRAFTS = Gauge("specserve_drafts_per_second", "Steps with drafts.")
OUTPUT = Gauge("specserve_output_tokens_per_second", "Output tokens.")
REQUESTS = Gauge("specserve_requests_per_second", "Finished requests.")
TTFT = Gauge("specserve_time_to_first_token_seconds", "Quantiles over finished requests.", ("quantile",))
TPOT = Gauge("specserve_time_per_output_token_seconds", "Quantiles over finished requests.", ("quantile",))
E2E = Gauge("specserve_request_latency_seconds", "Quantiles over finished requests.", ("quantile",))
RUNNING = Gauge("specserve_requests_running", "Running requests, mean over the window.")
WAITING = Gauge("specserve_requests_waiting", "Waiting requests, mean over the window.")
KV_CACHE = Gauge("specserve_kv_cache_usage_ratio", "Of the fullest engine, at most in the window.")
PREEMPTIONS = Gauge("specserve_preemptions_per_second", "Preempted requests.")
GAUGES = (
    UP, RESTARTS, COLLAPSED, PROMISE, STATE, WINDOW, RATE, LENGTH, POSITION, CONDITIONAL, DRAFTS, OUTPUT, REQUESTS,
    TTFT, TPOT, E2E, RUNNING, WAITING, KV_CACHE, PREEMPTIONS,
)  # fmt: skip


class Exporter:
    """Serves what it was last shown, until it is closed; a context manager. Listens nowhere before `listen`."""

    def __init__(self, *, profile: str, fingerprint: str) -> None:
        self._own = (profile, fingerprint)
        self._report: WatchReport | None = None
        self._server: Any = None

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def listen(self, host: str, port: int) -> int:
        """Answer there from now on; the port, which 0 leaves to the system. Raises UsageError where it is taken."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"the exporter cannot listen at {host}:{port}: {why}",
                hint="use `--exporter 127.0.0.1:0` for a free port",
            ) from error
        return int(self._server.server_port)

    def show(self, report: WatchReport) -> None:
        """What it serves from now on."""
        self._report = report

    def collect(self) -> Iterator[Any]:
        """One family after another, for the Prometheus library; of what cannot be told there is no sample."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self._report
        if report is None:
            return
        found: dict[str, Any] = {}
        for gauge, engine, extra, value in _values(report):
            if gauge.name not in found:
                family = CounterMetricFamily if gauge is RESTARTS else GaugeMetricFamily
                found[gauge.name] = family(gauge.name, gauge.help, labels=(*LABELS, *gauge.labels))
            found[gauge.name].add_metric((*self._own, engine.model_name, engine.engine, *extra), value)
        yield from found.values()


_ALL = EngineName("", "")
Value = tuple[Gauge, EngineName, tuple[str, ...], float]


def _values(report: WatchReport) -> Iterator[Value]:
    """Every sample. Of several engines, those of all together have the engine `all`."""
    seen = report.figures
    engines = list(seen.engines) if seen is not None else []
    names = list(dict.fromkeys(name.model_name for name in engines))
    whole = (
        engines[0] if len(engines) == 1 else EngineName(names[0] if names else "", "all") if engines else _ALL
    )
    yield UP, whole, (), 0.0 if report.trouble is not None else 1.0
    yield RESTARTS, whole, (), float(report.restarts)
    for state in WatchState:
        yield STATE, whole, (state.lower(),), float(state is report.verdict.state)
    for promise in report.promises:
        if promise.kept in {Kept.KEPT, Kept.MISSED}:
            yield PROMISE, whole, (promise.key,), float(promise.kept is Kept.KEPT)
    if seen is None:
        return
    dead = {collapse.engine for collapse in report.collapsed}
    for name in engines:
        yield COLLAPSED, name, (), float(name in dead)
    yield from _of_all(seen, whole)
    if len(engines) > 1:
        for name, counters in seen.engines.items():
            yield from _of_engine(counters, name, seconds=seen.window_s)


def _of_all(seen: WatchFigures, whole: EngineName) -> Iterator[Value]:
    yield WINDOW, whole, (), seen.window_s
    yield from _of_engine(seen.counters, whole, seconds=seen.window_s)
    for gauge, latency in ((TTFT, seen.ttft), (TPOT, seen.tpot), (E2E, seen.e2e)):
        for share, value in zip(QUANTILES, latency.quantiles_s, strict=True):
            if value is not None:
                yield gauge, whole, (f"{share:g}",), value
    yield RUNNING, whole, (), seen.running_requests
    yield WAITING, whole, (), seen.waiting_requests
    if seen.most_kv_cache_usage is not None:
        yield KV_CACHE, whole, (), seen.most_kv_cache_usage


def _of_engine(counters: Counters, name: EngineName, *, seconds: float) -> Iterator[Value]:
    counted = counters.acceptance
    if seconds > 0:
        yield DRAFTS, name, (), counted.drafts / seconds
        yield OUTPUT, name, (), counters.generation_tokens / seconds
        yield REQUESTS, name, (), counters.finished_requests / seconds
        yield PREEMPTIONS, name, (), counters.preemptions / seconds
    if counted.drafts < NUMBER_DRAFTS:
        return
    yield RATE, name, (), counted.acceptance_rate or 0.0
    yield LENGTH, name, (), counted.mean_acceptance_length or 1.0
    for position, share in enumerate(counted.per_position):
        yield POSITION, name, (str(position),), share
    for position, given in enumerate(counted.conditional):
        if given is not None:
            yield CONDITIONAL, name, (str(position),), given
