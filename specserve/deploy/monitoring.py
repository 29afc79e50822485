"""Alert rules for Prometheus, a Grafana dashboard, and both beside one server; PromQL on vLLM's own counters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import yaml

from specserve.deploy.deployment import Artifact, Deployment
from specserve.profile.schema import Expectation, Profile
from specserve.profile.writer import Commented, yaml_text

SERVER = "job, instance, model_name"
POOL_LABEL = "specserve_pool"
"""Tells the series of a server (`main`) and of its canary (`canary`) apart."""
"""How the model of servers without speculation is renamed, since the alerts on speculation are not for them."""


@dataclass(frozen=True, slots=True)
class Of:
    """Over which series, how much time, and by which labels."""

    range: str
    by: str
    """Empty: all of them together."""
    selector: str = ""
    """More label matchers, such as `model_name="llama"`."""

    def rate(self, metric: str, *, per: str = "") -> str:
        """Gain per second of a counter; `per`: one more label to keep."""
        by = f" by ({self.by}{per}) " if self.by else ""
        return f"sum{by}(rate({self.series(metric)}[{self.range}]))"

    def increase(self, metric: str) -> str:
        """Gain of a counter."""
        return f"sum by ({self.by}) (increase({self.series(metric)}[{self.range}]))"

    def series(self, metric: str) -> str:
        """The series of a metric of vLLM's."""
        return f"vllm:{metric}{{{self.selector}}}" if self.selector else f"vllm:{metric}"


DRAFTS = "spec_decode_num_drafts_total"
DRAFTED = "spec_decode_num_draft_tokens_total"
ACCEPTED = "spec_decode_num_accepted_tokens_total"
FINISHED = "request_success_total"
TTFT, TPOT = "time_to_first_token_seconds", "request_time_per_output_token_seconds"


def mean_acceptance_length(of: Of) -> str:
    """Return tokens per step with drafts, 1 to K + 1; nothing if nothing is drafted."""
    return f"1 + {of.rate(ACCEPTED)} / ({of.rate(DRAFTS)} > 0)"


def acceptance_ratio(of: Of) -> str:
    """Return accepted over drafted tokens."""
    return f"{of.rate(ACCEPTED)} / ({of.rate(DRAFTED)} > 0)"


def p99(metric: str, of: Of) -> str:
    """Return the 99th percentile of one of vLLM's histograms, in seconds."""
    return f"histogram_quantile(0.99, {of.rate(f'{metric}_bucket', per=', le')})"


Rule = dict[str, Any]
_HEAD = """\
Alerts on speculative decoding, from vLLM's own counters; goes into `rule_files` of prometheus.yml.
Written by specserve; `promtool check rules FILE` reads it."""


def dashboard() -> str:
    """Return the dashboard as JSON, to be imported in Grafana 10 or later."""
    return (files("specserve.deploy") / "dashboard.json").read_text(encoding="utf-8")


def alert_rules(profile: Profile | None = None) -> str:
    """Return a rule file in YAML; with a profile also its promises, for the model under its served name."""
    return yaml_text({"groups": alert_groups(profile)}, head=_HEAD)


def alert_groups(profile: Profile | None = None) -> list[dict[str, Any]]:
    """Return the groups of rules: recorded figures, general alerts, the profile's promises."""
    text = (files("specserve.deploy") / "alerts.yaml").read_text(encoding="utf-8")
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    promised = list(_promised(profile)) if profile is not None else []
    if profile is not None and promised:
        groups.append({"name": f"specserve-promises-{profile.name}", "rules": promised})
    return groups


def _alert(
    name: str, severity: str, held: str, expression: str, summary: str, description: str, **labels: str
) -> Rule:
    annotations = {"summary": summary, "description": description}
    shown = {"severity": severity, **labels}
    return {"alert": name, "expr": expression, "for": held, "labels": shown, "annotations": annotations}


def _of_model(profile: Profile) -> str:
    """The label matcher of a profile's model; Argo Rollouts would replace what stands in braces."""
    text = json.dumps(profile.server.served_model_name or profile.target.model, ensure_ascii=False)
    return f"model_name={text.replace('{', chr(92) + 'x7b')}"


def _promised(profile: Profile) -> Iterator[Rule]:
    selector = _of_model(profile)
    if profile.speculation is not None:
        yield _alert(
            "SpecserveSpeculationMissing", "critical", "5m",
            f"sum by ({SERVER}) (vllm:generation_tokens_total{{{selector}}}) unless on ({SERVER}) "
            f"sum by ({SERVER}) (vllm:{DRAFTS}{{{selector}}})",
            "{{ $labels.model_name }} is served without speculation",
            "The profile has a `speculation` block, and the server no speculation counters.",
            profile=profile.name,
        )  # fmt: skip
    of = Of("10m", by=SERVER, selector=selector)
    for key, expression in (
        ("min_mean_acceptance_length", mean_acceptance_length(of)),
        ("min_acceptance_rate", acceptance_ratio(of)),
        ("max_ttft_p99_ms", f"1000 * {p99(TTFT, of)}"),
        ("max_tpot_p99_ms", f"1000 * {p99(TPOT, of)}"),
    ):
        made = [item for item in profile.expect if getattr(item, key) is not None]
        if made:
            yield _missed(key, expression, made, of, profile=profile.name)


def _missed(key: str, expression: str, made: list[Expectation], of: Of, *, profile: str) -> Rule:
    """The weakest promise of a kind: counters do not tell workloads apart. Times hold up to their concurrency."""
    lowest, unit = key.startswith("min_"), " ms" if key.endswith("_ms") else ""
    item = (min if lowest else max)(made, key=lambda entry: getattr(entry, key))
    promised = f"{getattr(item, key):g}"
    compared = f"({expression}) {'<' if lowest else '>'} {promised}"
    if lowest:
        compared += f" and {of.increase(DRAFTS)} >= 1000"
    else:
        compared += f" and {of.increase(FINISHED)} >= 100"
        if item.concurrency is not None:
            running = f"avg_over_time({of.series('num_requests_running')}[10m])"
            compared += f" and sum by ({of.by}) ({running}) <= {item.concurrency}"
    return _alert(
        "SpecservePromiseMissed", "warning", "10m",
        compared,
        f"{{{{ $labels.model_name }}}} misses {key}",
        f'It is {{{{ $value | printf "%.2f" }}}}{unit}, and {promised}{unit} was promised.',
        profile=profile, promise=key,
    )  # fmt: skip


_CANARY_REQUESTS = {"30m": 300, "2h": 1500}
"""Requests that each server must finish in the window."""
_ANALYSIS_RANGE = "10m"
_BAD = 'finished_reason=~"error|abort"'


def pool_series(profile: Profile, pool: str) -> str:
    """Return the label matchers, in PromQL, of a pool's series: `main` or `canary`."""
    return f'{_of_model(profile)},{POOL_LABEL}="{pool}"'


def canary_alerts(profile: Profile, canary: Profile) -> list[dict[str, Any]]:
    """Return the rule group of a profile's canary: an alert to roll back for each figure, and one to promote.

    Acceptance is a figure only if both draft the same number of tokens.
    The rules compare fixed windows at every evaluation: over weeks, equal servers raise them now and then.
    """
    rules = [
        _alert(
            "SpecserveCanaryRollBack", "warning", "5m",
            f"({loss}) > {margin}",
            f"The canary of {{{{ $labels.model_name }}}} is worse: {key}",
            f"Over 30 minutes it is worse by {{{{ $value | humanizePercentage }}}}, more than the margin of {margin}. "
            "Send its traffic back to the other server.",
            figure=key,
        )
        for key, (loss, margin) in _canary_losses("30m", profile, canary).items()
    ]  # fmt: skip
    losses = _canary_losses("2h", profile, canary).values()
    promoted = _alert(
        "SpecserveCanaryPromote", "info", "30m",
        " and ".join(f"(({loss}) <= {margin})" for loss, margin in losses),
        "The canary of {{ $labels.model_name }} can be promoted",
        "Over 2 hours its figures are within their margins of the other server's.",
    )  # fmt: skip
    return [{"name": f"specserve-canary-{profile.name}", "rules": [*rules, promoted]}]


def _drafts_alike(profile: Profile, canary: Profile) -> bool:
    """Whether both draft the same number of tokens, so that their acceptance can be compared."""
    keys = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    found = [[one.speculation.keys.get(key) for key in keys] for one in (profile, canary) if one.speculation]
    return len(found) == 2 and found[0] == found[1]


def _canary_losses(window: str, profile: Profile, canary: Profile) -> dict[str, tuple[str, str]]:
    """By figure: what the canary loses, and its margin; the loss is empty with too few requests."""
    new, old = (Of(window, "model_name", pool_series(profile, pool)) for pool in ("canary", "main"))

    def mean_s(of: Of) -> str:
        return f"({of.rate(f'{TPOT}_sum')} / ({of.rate(f'{TPOT}_count')} > 0))"

    def errors(of: Of) -> str:
        bad = Of(of.range, by=of.by, selector=f"{of.selector},{_BAD}")
        return f"({bad.rate(FINISHED)} / ({of.rate(FINISHED)} > 0))"

    enough = " and ".join(f"{of.increase(FINISHED)} >= {_CANARY_REQUESTS[window]}" for of in (new, old))
    losses = {
        "acceptance": (f"({acceptance_ratio(old)}) - ({acceptance_ratio(new)})", "0.05"),
        "tpot": (f"{mean_s(new)} / ({mean_s(old)} > 0) - 1", "0.05"),
        "errors": (f"{errors(new)} - {errors(old)}", "0.01"),
    }
    if not _drafts_alike(profile, canary):
        del losses["acceptance"]
    return {key: (f"({loss}) and {enough}", margin) for key, (loss, margin) in losses.items()}


def canary_analysis(profile: Profile, canary: Profile) -> dict[str, Any]:
    """Return the `spec` of an AnalysisTemplate of Argo Rollouts: the canary's figures over those of the other server.

    Acceptance is a figure only if both draft the same number of tokens.
    """
    its, main = (pool_series(profile, pool) for pool in ("canary", "main"))
    new, old, bad = (Of(_ANALYSIS_RANGE, by="", selector=one) for one in (its, main, f"{its},{_BAD}"))

    def ratio(over: str, under: str) -> str:
        return " / ".join(f"({of.rate(over)} / {of.rate(under)})" for of in (new, old))

    metrics = {
        "acceptance": (ratio(ACCEPTED, DRAFTED), ">=", "<", 0.95),
        "tpot": (ratio(f"{TPOT}_sum", f"{TPOT}_count"), "<=", ">", 1.05),
        "errors": (f"({bad.rate(FINISHED)} or vector(0)) / {new.rate(FINISHED)}", "<=", ">", 0.01),
    }
    prometheus = Commented(
        "assumed: name yours in your own kustomization", "http://prometheus-operated.monitoring.svc:9090"
    )
    found = [
        {
            "name": name,
            "interval": "1m",
            "count": 30,
            "failureLimit": 3,
            "inconclusiveLimit": 30,
            "successCondition": f"len(result) > 0 && result[0] {good} {limit}",
            "failureCondition": f"len(result) > 0 && result[0] {bad} {limit}",
            "provider": {"prometheus": {"address": prometheus, "query": query}},
        }
        for name, (query, good, bad, limit) in metrics.items()
        if name != "acceptance" or _drafts_alike(profile, canary)
    ]
    text = "each evaluation compares means over 10 minutes; over weeks, equal servers fail one now and then"
    return {"metrics": Commented(text, found)}


def monitoring(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Returns the files for Prometheus and Grafana on the machine of a server that runs already.

    A canary is expected on the same host, one port higher.
    """
    pools = {"main": (made.reached_host, made)}
    if made.canary:
        canary = made.canary.made
        plan = replace(canary.plan, port=made.plan.port + 1)
        pools["canary"] = (made.reached_host, replace(canary, plan=plan))
    return monitoring_files(made, pools, prometheus_url="http://127.0.0.1:9090")


def monitoring_files(
    made: Deployment, pools: Mapping[str, tuple[str, Deployment]], *, prometheus_url: str
) -> tuple[Artifact, ...]:
    """Returns what Prometheus and Grafana read. `pools`: by `main`, `canary` a server and its host."""
    prometheus = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["specserve.rules.yml"],
        "scrape_configs": [_job(made, pool, host, one) for pool, (host, one) in pools.items()],
    }
    groups = alert_groups(made.profile) + (
        canary_alerts(made.profile, made.canary.made.profile) if made.canary else []
    )
    folder = {"path": "/etc/dashboards"}
    provider = {"name": "specserve", "type": "file", "allowUiUpdates": False, "options": folder}
    source = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "url": prometheus_url}
    sources = {"apiVersion": 1, "datasources": [{**source, "isDefault": True}]}
    provisioning = "grafana/provisioning"
    texts = {
        "prometheus/prometheus.yml": yaml_text(prometheus, head=made.head),
        "prometheus/specserve.rules.yml": yaml_text({"groups": groups}, head=_HEAD),
        "grafana/dashboards/specserve.json": dashboard(),
        f"{provisioning}/dashboards/specserve.yaml": yaml_text(
            {"apiVersion": 1, "providers": [provider]}, head=made.head
        ),
        f"{provisioning}/datasources/prometheus.yaml": yaml_text(sources, head=made.head),
    }
    return tuple(Artifact(path, text, alone=False) for path, text in texts.items())


def _job(main: Deployment, pool: str, host: str, made: Deployment) -> dict[str, Any]:
    """How Prometheus reads one server."""
    labels = {"profile": main.profile.name, "fingerprint": made.plan.fingerprint[:16]}
    if main.canary:
        labels[POOL_LABEL] = pool
    job: dict[str, Any] = {
        "job_name": main.name if pool == "main" else f"{main.name}-{pool}",
        "scheme": made.scheme,
    }
    if made.scheme == "https":
        job["tls_config"] = {"insecure_skip_verify": True}
    servers = [{"targets": [f"{host}:{made.plan.port}"], "labels": labels}]
    job["static_configs"] = Commented("the server; /metrics asks for no key", servers)
    return job
