"""A Grafana dashboard of one deployment, and PromQL on vLLM's own counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
FINISHED = "request_success_total"
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
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: queries by their legends, what its axis counts in, and its bounds."""

    title: str
    about: str
    queries: Mapping[str, str]
    unit: str = "short"
    least: float = 0
    most: float | None = None
    is_stat: bool = False


def dashboard() -> str:
    """Returns the dashboard as JSON, to be imported in Grafana 10 or later."""
    content = {
        "uid": "specserve",
        "title": "Speculative decoding",
        "description": "Written by specserve, on vLLM's own counters.",
        "tags": ["vllm", "speculative-decoding"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _placed(_panels()),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def queries() -> tuple[str, ...]:
    """Returns every PromQL expression of it."""
    return tuple(expression for panel in _panels() for expression in panel.queries.values())


def _panels() -> tuple[Panel, ...]:
    now = Of("$__rate_interval", by="model_name", selector=_SELECTOR)
    engine = Of("$__rate_interval", by=_BY, selector=_SELECTOR)
    share: dict[str, Any] = {"unit": "percentunit", "most": 1}

    def latency(title: str, about: str, metric: str) -> Panel:
        shares = (0.5, 0.9, 0.99)
        found = {f"{{{{model_name}}}} p{each * 100:g}": quantile(each, metric, now) for each in shares}
        return Panel(title, about, found, unit="s")

    def summed(metric: str) -> str:
        return f"sum by ({_BY}) ({engine.series(metric)})"

    return (
        _stat("Mean acceptance length", "Tokens per step, 1 to K + 1.", mean_acceptance_length(now), least=1),
        _stat("Acceptance", "Accepted over drafted tokens.", acceptance_ratio(now), unit="percentunit"),
        _stat("Output", "Tokens per second.", now.rate(GENERATED)),
        _stat("TTFT, p99", "Time to the first token.", quantile(0.99, TTFT, now), unit="s"),
        Panel(
            "Mean acceptance length",
            "Tokens per step with drafts, the target's own included. Under 1.05 the draft is dead.",
            {_LEGEND: mean_acceptance_length(engine)},
            least=1,
        ),
        Panel(
            "Acceptance per position",
            "Share of the steps that accepted each draft position, from 0. Where K varies, later ones read low.",
            {"{{model_name}} {{engine}} position {{position}}": position_ratio(engine)},
            **share,
        ),
        Panel(
            "Output without a draft",
            "Share of the output tokens that came without one: context beyond the draft's, or a schedule with K = 0.",
            {_LEGEND: undrafted_ratio(engine)},
            **share,
        ),
        latency("TTFT", "Time to the first token.", TTFT),
        latency("TPOT", "Time per output token after the first, of each finished request.", TPOT),
        latency("E2E", "A whole request.", E2E),
        Panel(
            "Requests",
            "Running and waiting. With each more that runs, drafts gain less.",
            {f"{state} {_LEGEND}": summed(f"num_requests_{state}") for state in ("running", "waiting")},
        ),
        Panel("KV cache", "Share in use.", {_LEGEND: summed("kv_cache_usage_perc")}, **share),
        Panel(
            "Preemptions",
            "Requests per second whose work is thrown away, as the KV cache is full.",
            {_LEGEND: engine.rate("num_preemptions_total")},
        ),
    )


def _stat(title: str, about: str, query: str, *, unit: str = "short", least: float = 0) -> Panel:
    return Panel(title, about, {"{{model_name}}": query}, unit=unit, least=least, is_stat=True)


def _variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    for name in ("job", "model_name", "instance"):
        query = {"query": f"label_values(vllm:generation_tokens_total, {name})", "refId": name}
        every = {"includeAll": True, "allValue": ".*", "multi": True}
        current = {"text": "All", "value": "$__all"}
        head = {"name": name, "type": "query", "datasource": _SOURCE, "query": query}
        found.append({**head, **every, "current": current, "refresh": 2})
    return found


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Side by side from the left, row by row."""
    placed, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        wide, high = (6, 4) if panel.is_stat else (8, 8)
        if x + wide > _WIDTH:
            x, y = 0, y + height
        placed.append({"id": number, "gridPos": {"x": x, "y": y, "w": wide, "h": high}} | _panel(panel))
        x, height = x + wide, high
    return placed


def _panel(panel: Panel) -> dict[str, Any]:
    most = {} if panel.most is None else {"max": panel.most}
    shown: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi"},
    }
    if panel.is_stat:
        shown = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    defaults = {"unit": panel.unit, "decimals": 2, "min": panel.least, **most}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": shown,
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for letter, (legend, query) in zip("ABC", panel.queries.items(), strict=False)
        ],
    }
