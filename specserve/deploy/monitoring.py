"""Alert rules for Prometheus, and Prometheus and Grafana beside one server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from specserve.deploy.dashboard import (
    DRAFTS,
    ENGINE,
    GENERATED,
    SERVER,
    TPOT,
    TTFT,
    Of,
    acceptance_ratio,
    dashboard,
    mean_acceptance_length,
    position_ratio,
    quantile,
    undrafted_ratio,
)
from specserve.deploy.deployment import Artifact, Deployment
from specserve.profile.schema import Expectation, Profile
from specserve.profile.writer import Commented, yaml_text

Rule = dict[str, Any]
_HEAD = """\
Alerts on speculative decoding, from vLLM's own counters; goes into `rule_files` of prometheus.yml.
Written by specserve; `promtool check rules FILE` reads it."""


def alert_rules(profile: Profile | None = None) -> str:
    """A rule file, in YAML. With a profile, also its promises, for the model under the name that it is served by."""
    return yaml_text({"groups": alert_groups(profile)}, head=_HEAD)


def alert_groups(profile: Profile | None = None) -> list[dict[str, Any]]:
    """The groups of rules: recorded figures, general alerts, the profile's promises."""
    groups = {"specserve-alerts": list(_general())}
    if profile is not None:
        groups[f"specserve-promises-{profile.name}"] = list(_promised(profile))
    recorded = {"name": "specserve-figures", "interval": "30s", "rules": list(_recorded())}
    return [recorded, *({"name": name, "rules": rules} for name, rules in groups.items() if rules)]


def _recorded() -> Iterator[Rule]:
    engine, server = Of("5m"), Of("5m", by=SERVER)
    figures = {
        "engine:specserve_drafts:rate5m": engine.rate(DRAFTS),
        "engine:specserve_acceptance_ratio:rate5m": acceptance_ratio(engine),
        "engine:specserve_mean_acceptance_length:rate5m": mean_acceptance_length(engine),
        "engine_position:specserve_acceptance_ratio:rate5m": position_ratio(engine),
        "engine:specserve_undrafted_ratio:rate5m": undrafted_ratio(engine),
        "server:specserve_ttft_seconds:p99_rate5m": quantile(0.99, TTFT, server),
        "server:specserve_tpot_seconds:p99_rate5m": quantile(0.99, TPOT, server),
    }
    for name, expression in figures.items():
        yield {"record": name, "expr": expression}


def _general() -> Iterator[Rule]:
    short, long = Of("2m"), Of("10m")
    yield _alert(
        "SpecserveDraftCollapsed",
        f"({mean_acceptance_length(short)}) < 1.05 and {short.increase(DRAFTS)} >= 200",
        held="1m",
        severity="critical",
        summary="The draft of {{ $labels.model_name }} is dead",
        description='A step of engine {{ $labels.engine }} yields {{ $value | printf "%.2f" }} tokens: each draft is '
        "paid for and refused. The text stays right. Restart the server; if that does not help, serve without "
        "speculation.",
    )
    yield _alert(
        "SpecserveNoDrafts",
        f"{long.increase(GENERATED)} > 2000 and {long.increase(DRAFTS)} == 0",
        held="5m",
        severity="warning",
        summary="{{ $labels.model_name }} generates without drafts",
        description="The server is set to speculate, and engine {{ $labels.engine }} drafted nothing for 10 minutes of "
        "traffic: contexts beyond the draft's limit, or a batch-size schedule that ends in 0.",
    )
    day = Of("1d")
    now = Of("30m")
    before = mean_acceptance_length(day).replace("[1d]", "[1d] offset 1h")
    yield _alert(
        "SpecserveAcceptanceFell",
        f"({mean_acceptance_length(now)}) < 0.85 * ({before}) and {now.increase(DRAFTS)} >= 1000",
        held="15m",
        severity="warning",
        summary="{{ $labels.model_name }} accepts less than it did yesterday",
        description='The mean acceptance length is {{ $value | printf "%.2f" }}, under 85 % of the day before: other '
        "traffic (language, length, temperature, template), or another draft.",
    )
    yield _alert(
        "SpecserveDraftPositionsWasted",
        f"({position_ratio(Of('1h'))}) < on ({ENGINE}) group_left () (0.02 * ({mean_acceptance_length(Of('1h'))})) "
        f"and on ({ENGINE}) {Of('1h').increase(DRAFTS)} >= 1000",
        held="1h",
        severity="info",
        summary="{{ $labels.model_name }} drafts tokens that are hardly ever accepted",
        description="Draft position {{ $labels.position }} (from 0) is accepted in {{ $value | humanizePercentage }} "
        "of the steps: a smaller num_speculative_tokens drops what it costs.",
    )
    yield from _server_alerts()


def _server_alerts() -> Iterator[Rule]:
    of, long = Of("2m"), Of("10m")
    tokens = f"{of.rate(GENERATED)} + {of.rate('prompt_tokens_total')}"
    yield _alert(
        "SpecserveServerHangs",
        f"sum by ({ENGINE}) (vllm:num_requests_running) > 0 and ({tokens}) == 0",
        held="1m",
        severity="critical",
        summary="{{ $labels.model_name }} hangs",
        description="{{ $value }} requests run on engine {{ $labels.engine }}, and for 2 minutes no token came.",
    )
    yield _alert(
        "SpecserveServerRestarts",
        "sum by (job, instance, model_name) (resets(vllm:generation_tokens_total[15m])) >= 2",
        held="0m",
        severity="warning",
        summary="{{ $labels.model_name }} starts again and again",
        description="{{ $value }} starts in 15 minutes: the server's log tells why.",
    )
    yield _alert(
        "SpecservePreemptions",
        f"{long.rate('num_preemptions_total')} > 0.1 and max by ({ENGINE}) "
        "(max_over_time(vllm:kv_cache_usage_perc[10m])) > 0.9",
        held="10m",
        severity="warning",
        summary="The KV cache of {{ $labels.model_name }} is full",
        description='{{ $value | printf "%.1f" }} requests per second are preempted and done again: lower max_num_seqs '
        "or max_model_len, or serve without the draft, which takes room from the cache.",
    )


def _promised(profile: Profile) -> Iterator[Rule]:
    model = profile.server.served_model_name or profile.target.model
    selector = f"model_name={json.dumps(model, ensure_ascii=False)}"
    labels = {"profile": profile.name}
    if profile.speculation is not None:
        yield _alert(
            "SpecserveSpeculationMissing",
            f"sum by ({SERVER}) (vllm:generation_tokens_total{{{selector}}}) unless on ({SERVER}) "
            f"sum by ({SERVER}) (vllm:{DRAFTS}{{{selector}}})",
            held="5m",
            severity="critical",
            summary="{{ $labels.model_name }} is served without speculation",
            description="The profile has a `speculation` block, and the server no speculation counters.",
            labels=labels,
        )
    of = Of("10m", by=SERVER, selector=selector)
    for key, expression, unit in (
        ("min_mean_acceptance_length", mean_acceptance_length(of), ""),
        ("min_acceptance_rate", acceptance_ratio(of), ""),
        ("max_ttft_p99_ms", f"1000 * {quantile(0.99, TTFT, of)}", " ms"),
        ("max_tpot_p99_ms", f"1000 * {quantile(0.99, TPOT, of)}", " ms"),
    ):
        made = [item for item in profile.expect if getattr(item, key) is not None]
        if made:
            yield _missed(key, expression, made, of, unit=unit, labels=labels)


def _missed(
    key: str, expression: str, made: list[Expectation], of: Of, *, unit: str, labels: dict[str, str]
) -> Rule:
    """The weakest promise of a kind: counters do not tell workloads apart. Times hold up to their concurrency."""
    lowest = key.startswith("min_")
    item = (min if lowest else max)(made, key=lambda entry: getattr(entry, key))
    value = getattr(item, key)
    compared = f"({expression}) {'<' if lowest else '>'} {value:g}"
    if lowest:
        compared += f" and {of.increase(DRAFTS)} >= 1000"
    else:
        compared += f" and {of.increase('request_success_total')} >= 100"
        if item.concurrency is not None:
            running = f"avg_over_time({of.series('num_requests_running')}[10m])"
            compared += f" and sum by ({of.by}) ({running}) <= {item.concurrency}"
    return _alert(
        "SpecservePromiseMissed",
        compared,
        held="10m",
        severity="warning",
        summary=f"{{{{ $labels.model_name }}}} misses {key}",
        description=f'It is {{{{ $value | printf "%.2f" }}}}{unit}, and {value:g}{unit} was promised.',
        labels={**labels, "promise": key},
    )


def _alert(
    name: str,
    expression: str,
    *,
    held: str,
    severity: str,
    summary: str,
    description: str,
    labels: dict[str, str] | None = None,
) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": held,
        "labels": {"severity": severity, **(labels or {})},
        "annotations": {"summary": summary, "description": description},
    }


def monitoring(made: Deployment) -> tuple[Artifact, ...]:
    """Prometheus and Grafana on the machine of a server that runs already."""
    target = f"{made.reached_host}:{made.plan.port}"
    return monitoring_files(made, target=target, prometheus_url="http://127.0.0.1:9090")


def monitoring_files(made: Deployment, *, target: str, prometheus_url: str) -> tuple[Artifact, ...]:
    """What Prometheus and Grafana read. `target`: host and port at which Prometheus finds the server."""
    rules = alert_rules(made.profile)
    return (
        Artifact("prometheus/prometheus.yml", _prometheus(made, target=target), alone=False),
        Artifact("prometheus/specserve.rules.yml", rules, alone=False),
        Artifact("grafana/dashboards/specserve.json", dashboard(), alone=False),
        Artifact("grafana/provisioning/dashboards/specserve.yaml", _provider(made), alone=False),
        Artifact(
            "grafana/provisioning/datasources/prometheus.yaml", _source(made, prometheus_url), alone=False
        ),
    )


def _prometheus(made: Deployment, *, target: str) -> str:
    labels = {"profile": made.profile.name, "fingerprint": made.plan.fingerprint[:16]}
    job: dict[str, Any] = {"job_name": made.name, "scheme": made.scheme}
    if made.scheme == "https":
        job["tls_config"] = {"insecure_skip_verify": True}
    where = Commented("the server; /metrics asks for no key", [{"targets": [target], "labels": labels}])
    content = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["specserve.rules.yml"],
        "scrape_configs": [{**job, "static_configs": where}],
    }
    return yaml_text(content, head=made.head)


def _provider(made: Deployment) -> str:
    provider = {
        "name": "specserve",
        "type": "file",
        "allowUiUpdates": False,
        "options": {"path": "/etc/dashboards"},
    }
    return yaml_text({"apiVersion": 1, "providers": [provider]}, head=made.head)


def _source(made: Deployment, url: str) -> str:
    source = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "url": url, "isDefault": True}
    return yaml_text({"apiVersion": 1, "datasources": [source]}, head=made.head)
