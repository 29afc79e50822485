"""The figures of the newest look as Prometheus gauges, at an address of their own. Holds no key, reads no server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from specserve.errors import UsageError
from specserve.measure.watch.figures import NUMBER_DRAFTS, QUANTILES, WatchFigures
from specserve.measure.watch.verdict import Kept, WatchState
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import Counters, EngineName

LABELS = ("profile", "fingerprint", "model_name", "engine")


class Gauge(NamedTuple):
    """One metric of the exporter."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Beyond LABELS."""


UP = Gauge("specserve_up", "1 where the newest reading of the server's metrics succeeded, else 0.")
RESTARTS = Gauge("specserve_server_restarts", "Restarts of the server seen since watching began.")
COLLAPSED = Gauge(
    "specserve_collapsed", "1 where the engine's drafts are refused: mean acceptance length under 1.05."
)
PROMISE = Gauge("specserve_promise_kept", "1 kept, 0 missed; absent where it is not decided.", ("promise",))
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
                hint="`--exporter 127.0.0.1:0` takes a free port",
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
