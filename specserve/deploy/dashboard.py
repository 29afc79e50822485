"""A Grafana dashboard of one deployment, and PromQL on vLLM's own counters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ENGINE = "job, instance, model_name, engine"
"""Labels of one engine. Each is judged alone: in the mean of eight, a dead one does not show."""
SERVER = "job, instance, model_name"


@dataclass(frozen=True, slots=True)
class Of:
    """Over which series, how much time, and by which labels."""

    range: str
    by: str = ENGINE
    selector: str = ""
    """More label matchers, such as `model_name="llama"`."""

    def rate(self, metric: str, *, per: str = "") -> str:
        """Gain per second of a counter; `per`: one more label to keep."""
        return f"sum by ({self.by}{per}) (rate({self.series(metric)}[{self.range}]))"

    def increase(self, metric: str) -> str:
        """Gain of a counter."""
        return f"sum by ({self.by}) (increase({self.series(metric)}[{self.range}]))"

    def series(self, metric: str) -> str:
        """The series of a metric of vLLM's."""
        return f"vllm:{metric}{{{self.selector}}}" if self.selector else f"vllm:{metric}"


DRAFTS = "spec_decode_num_drafts_total"
DRAFTED = "spec_decode_num_draft_tokens_total"
ACCEPTED = "spec_decode_num_accepted_tokens_total"
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
GENERATED = "generation_tokens_total"
FIRST_TOKENS = "time_to_first_token_seconds_count"
TTFT, TPOT, E2E = (
    "time_to_first_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
)


def mean_acceptance_length(of: Of) -> str:
    """Tokens per step with drafts, 1 to K + 1; nothing where nothing is drafted."""
    return f"1 + {of.rate(ACCEPTED)} / ({of.rate(DRAFTS)} > 0)"


def acceptance_ratio(of: Of) -> str:
    """Accepted over drafted tokens."""
    return f"{of.rate(ACCEPTED)} / ({of.rate(DRAFTED)} > 0)"


def position_ratio(of: Of) -> str:
    """Share of the steps that accepted each draft position. Where K varies, later positions read low."""
    return f"{of.rate(PER_POSITION, per=', position')} / on ({of.by}) group_left () ({of.rate(DRAFTS)} > 0)"


def undrafted_ratio(of: Of) -> str:
    """Share of the output tokens, after each request's first, that came without a draft; an estimate from below."""
    later = f"({of.rate(GENERATED)} - {of.rate(FIRST_TOKENS)})"
    return f"clamp_min(1 - ({of.rate(DRAFTS)} + {of.rate(ACCEPTED)}) / ({later} > 0), 0)"


def quantile(share: float, metric: str, of: Of) -> str:
    """A quantile of one of vLLM's histograms, in seconds."""
    return f"histogram_quantile({share:g}, {of.rate(f'{metric}_bucket', per=', le')})"


_SELECTOR = 'job=~"$job", model_name=~"$model_name", instance=~"$instance"'
_BY = "model_name, instance, engine"
_LEGEND = "{{model_name}} {{instance}} {{engine}}"
_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: queries with their legends, and what its axis counts in."""

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    least: float | None = 0
    most: float | None = None


def dashboard() -> str:
    """The dashboard as JSON, to be imported in Grafana 10 or later. Variables: data source, job, model, instance."""
    return json.dumps(_dashboard(), indent=1, ensure_ascii=False) + "\n"


def queries() -> tuple[str, ...]:
    """Every PromQL expression of it."""
    return tuple(expression for panel in _panels() for expression, _ in panel.queries)


def _panels() -> tuple[Panel, ...]:
    now, engine = Of("$__rate_interval", by="model_name", selector=_SELECTOR), _engine()
    return (
        _stat("Mean acceptance length", "Tokens per step, 1 to K + 1.", mean_acceptance_length(now), least=1),
        _stat("Acceptance", "Accepted over drafted tokens.", acceptance_ratio(now), unit="percentunit"),
        _stat("Output", "Tokens per second.", now.rate(GENERATED)),
        _stat("TTFT, p99", "Time to the first token.", quantile(0.99, TTFT, now), unit="s"),
        *_speculation(engine),
        *_latency(now),
        *_load(engine),
    )


def _engine() -> Of:
    return Of("$__rate_interval", by=_BY, selector=_SELECTOR)


def _stat(title: str, about: str, query: str, *, unit: str = "short", least: float = 0) -> Panel:
    queries = ((query, "{{model_name}}"),)
    return Panel(title, about, queries, unit=unit, kind="stat", width=6, height=4, least=least)


def _speculation(engine: Of) -> tuple[Panel, ...]:
    position = position_ratio(engine)
    by_position = "{{model_name}} {{engine}} position {{position}}"
    return (
        Panel(
            "Mean acceptance length",
            "Tokens per step with drafts, the target's own included. Under 1.05 the draft is dead.",
            ((mean_acceptance_length(engine), _LEGEND),),
            least=1,
        ),
        Panel(
            "Acceptance per position",
            "Share of the steps that accepted each draft position, from 0. Where K varies, later ones read low.",
            ((position, by_position),),
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Output without a draft",
            "Share of the output tokens that came without one: context beyond the draft's, or a schedule with K = 0.",
            ((undrafted_ratio(engine), _LEGEND),),
            unit="percentunit",
            most=1,
        ),
    )


def _latency(now: Of) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title,
            about,
            tuple(
                (quantile(share, metric, now), f"{{{{model_name}}}} p{share * 100:g}")
                for share in (0.5, 0.9, 0.99)
            ),
            unit="s",
        )
        for title, about, metric in (
            ("TTFT", "Time to the first token.", TTFT),
            ("TPOT", "Time per output token after the first, of each finished request.", TPOT),
            ("E2E", "A whole request.", E2E),
        )
    )


def _load(engine: Of) -> tuple[Panel, ...]:
    def summed(metric: str) -> str:
        return f"sum by ({_BY}) ({engine.series(metric)})"

    running, waiting = summed("num_requests_running"), summed("num_requests_waiting")
    return (
        Panel(
            "Requests",
            "Running and waiting. With each more that runs, drafts gain less.",
            ((running, f"running {_LEGEND}"), (waiting, f"waiting {_LEGEND}")),
        ),
        Panel(
            "KV cache",
            "Share in use.",
            ((summed("kv_cache_usage_perc"), _LEGEND),),
            unit="percentunit",
            most=1,
        ),
        Panel(
            "Preemptions",
            "Requests per second whose work is thrown away, as the KV cache is full.",
            ((engine.rate("num_preemptions_total"), _LEGEND),),
        ),
    )


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "specserve",
        "title": "Speculative decoding",
        "description": "Written by specserve, on vLLM's own counters.",
        "tags": ["vllm", "speculative-decoding"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(name) for name in ("job", "model_name", "instance"))]},
        "panels": _placed(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values(vllm:generation_tokens_total, {name})", "refId": name},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Side by side from the left, row by row."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _WIDTH:
            x, y, height = 0, y + height, 0
        placed.append(
            {"id": number, "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height}} | _panel(panel)
        )
        x, height = x + panel.width, max(height, panel.height)
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    bounds = {name: value for name, value in (("min", panel.least), ("max", panel.most)) if value is not None}
    shown: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi"},
    }
    if panel.kind == "stat":
        shown = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "decimals": 2, **bounds}, "overrides": []},
        "options": shown,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }
