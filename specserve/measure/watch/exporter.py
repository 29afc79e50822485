"""The figures of the newest window as Prometheus gauges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from specserve.errors import UsageError
from specserve.measure.watch.figures import NUMBER_DRAFTS, QUANTILES, quantiles_s
from specserve.measure.watch.verdict import Kept, WatchState
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import Counters, EngineName

LABELS = ("profile", "fingerprint", "model_name", "engine")


class Gauge(NamedTuple):
    """One metric of the exporter."""

    name: str
    help: str
    label: str = ""
    """Beyond LABELS."""


_OVER_REQUESTS = "Quantiles over finished requests."
GAUGES = (
    Gauge("specserve_up", "1 if the newest reading of the server's metrics succeeded, else 0."),
    Gauge("specserve_server_restarts", "Restarts of the server seen since watching began."),
    Gauge("specserve_collapsed", "1 if the engine's draft is dead: mean acceptance length below 1.05."),
    Gauge("specserve_promise_kept", "1 kept, 0 missed; absent if it is undecided.", "promise"),
    Gauge("specserve_verdict", "1 for the state of the verdict.", "state"),
    Gauge("specserve_window_seconds", "Time that the other figures are over."),
    Gauge("specserve_acceptance_ratio", "Accepted over drafted tokens."),
    Gauge("specserve_mean_acceptance_length_tokens", "Tokens per step with drafts: 1 to K + 1."),
    Gauge("specserve_position_acceptance_ratio", "Steps that accepted this draft position.", "position"),
    Gauge(
        "specserve_position_conditional_acceptance_ratio",
        "Of the steps that accepted the position before, the share that accepted this one.",
        "position",
    ),
    Gauge("specserve_drafts_per_second", "Steps with drafts."),
    Gauge("specserve_output_tokens_per_second", "Output tokens."),
    Gauge("specserve_requests_per_second", "Finished requests."),
    Gauge("specserve_time_to_first_token_seconds", _OVER_REQUESTS, "quantile"),
    Gauge("specserve_time_per_output_token_seconds", _OVER_REQUESTS, "quantile"),
    Gauge("specserve_request_latency_seconds", _OVER_REQUESTS, "quantile"),
    Gauge("specserve_requests_running", "Running requests, mean over the window."),
    Gauge("specserve_requests_waiting", "Waiting requests, mean over the window."),
    Gauge("specserve_kv_cache_usage_ratio", "Of the fullest engine, at most in the window."),
    Gauge("specserve_preemptions_per_second", "Preempted requests."),
)
_ONLY_GROWS = "specserve_server_restarts"
_TIMES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}


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

    def listen_at(self, address: str) -> tuple[str, int]:
        """Answer at `[HOST:]PORT` from now on; returns host and port. Raises UsageError."""
        host, _, port = address.rpartition(":")  # `9109`, `127.0.0.1:9109`, `[::1]:9109`
        host = host.strip("[]") or "127.0.0.1"
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise UsageError(
                f"`--exporter` is not an address: {address!r}", hint="write it like 127.0.0.1:9109, or 9109"
            )
        return host, self.listen(host, int(port))

    def listen(self, host: str, port: int) -> int:
        """Answer there from now on; returns the port, which 0 leaves to the system. Raises UsageError."""
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
        """Serve this from now on."""
        self._report = report

    def collect(self) -> Iterator[Any]:
        """Yield one family after another, for the Prometheus library; a figure that is not known has no sample."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for gauge in GAUGES:
            family = CounterMetricFamily if gauge.name == _ONLY_GROWS else GaugeMetricFamily
            labels = (*LABELS, gauge.label) if gauge.label else LABELS
            families[gauge.name] = family(gauge.name, gauge.help, labels=labels)
        for name, engine, label, value in _samples(self._report) if self._report is not None else ():
            if value is not None:
                labels = (*self._own, *engine, *((label,) if label else ()))
                families[f"specserve_{name}"].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


_Sample = tuple[str, EngineName, str, float | None]
"""Name, engine, value of the further label, value."""


def _samples(report: WatchReport) -> Iterator[_Sample]:
    """Every sample. Of several engines, the sums have the engine `all`."""
    seen = report.figures
    engines = seen.whole.engines if seen is not None else {}
    first = next(iter(engines), EngineName("", ""))
    whole = first if len(engines) < 2 else first._replace(engine="all")
    yield "up", whole, "", float(report.trouble is None)
    yield "server_restarts", whole, "", float(report.restarts)
    for state in WatchState:
        yield "verdict", whole, state.lower(), float(state is report.verdict.state)
    for promise in report.promises:
        if promise.kept in {Kept.KEPT, Kept.MISSED}:
            yield "promise_kept", whole, promise.key, float(promise.kept is Kept.KEPT)
    if seen is None:
        return
    dead = {collapse.engine for collapse in report.collapsed}
    for name in engines:
        yield "collapsed", name, "", float(name in dead)
    for name, counters in {whole: seen.counters, **engines}.items():
        yield from _of_engine(counters, name, seconds=seen.whole.seconds)
    yield "window_seconds", whole, "", seen.whole.seconds
    for key, name_of in _TIMES.items():
        for share, value in zip(QUANTILES, quantiles_s(seen.latency(key)), strict=True):
            yield f"{name_of}_seconds", whole, f"{share:g}", value
    yield "requests_running", whole, "", seen.running_requests
    yield "requests_waiting", whole, "", seen.per_s(seen.whole.waiting_request_s)
    yield "kv_cache_usage_ratio", whole, "", seen.whole.most_kv_cache_usage


def _of_engine(counters: Counters, name: EngineName, *, seconds: float) -> Iterator[_Sample]:
    counted = counters.acceptance
    if seconds > 0:
        yield "drafts_per_second", name, "", counted.drafts / seconds
        yield "output_tokens_per_second", name, "", counters.generation_tokens / seconds
        yield "requests_per_second", name, "", counters.finished_requests / seconds
        yield "preemptions_per_second", name, "", counters.preemptions / seconds
    if counted.drafts < NUMBER_DRAFTS:
        return
    yield "acceptance_ratio", name, "", counted.acceptance_rate
    yield "mean_acceptance_length_tokens", name, "", counted.mean_acceptance_length
    for position, (share, given) in enumerate(zip(counted.per_position, counted.conditional, strict=True)):
        yield "position_acceptance_ratio", name, str(position), share
        yield "position_conditional_acceptance_ratio", name, str(position), given
