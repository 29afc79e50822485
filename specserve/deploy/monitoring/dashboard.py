"""A Grafana dashboard of one deployment, on vLLM's own counters. Pure; writes no file and asks no Grafana."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specserve.deploy.monitoring.expressions import (
    E2E,
    GENERATED,
    TPOT,
    TTFT,
    Of,
    acceptance_ratio,
    mean_acceptance_length,
    position_ratio,
    quantile,
    undrafted_ratio,
)

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
