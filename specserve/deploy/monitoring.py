"""Prometheus' alert rules and Grafana's dashboard for one server, by PromQL on vLLM's counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import yaml

from specserve.deploy.deployment import Artifact, Deployment
from specserve.profile.schema import Profile
from specserve.profile.writer import Commented, yaml_text

POOL_LABEL = "specserve_pool"
"""Tells the series of a server (`main`) and of its canary (`canary`) apart."""
_SERVER = "job, instance, model_name"
_DRAFTS = "spec_decode_num_drafts_total"
_DRAFTED = "spec_decode_num_draft_tokens_total"
_ACCEPTED = "spec_decode_num_accepted_tokens_total"
_FINISHED = "request_success_total"
_TPOT = "request_time_per_output_token_seconds"
_CANARY_REQUESTS = {"10m": 100, "30m": 300, "2h": 1500}
"""Requests that each server must finish in the window."""
HEAD = """\
Alerts on speculative decoding, from vLLM's own counters; goes into `rule_files` of prometheus.yml.
Written by specserve; `promtool check rules FILE` reads it."""


def dashboard() -> str:
    """Return the dashboard as JSON, to be imported in Grafana 10 or later."""
    return (files("specserve.deploy") / "dashboard.json").read_text(encoding="utf-8")


def alert_groups(profile: Profile | None = None) -> list[dict[str, Any]]:
    """Return the groups of rules: recorded figures, general alerts, the profile's promises."""
    text = (files("specserve.deploy") / "alerts.yaml").read_text(encoding="utf-8")
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    if profile is not None and (promised := list(_promised(profile))):
        groups.append({"name": f"specserve-promises-{profile.name}", "rules": promised})
    return groups


def _gain(function: str, metric: str, selector: str, window: str, by: str) -> str:
    """PromQL for `rate` or `increase` of a counter of vLLM's, summed over all but these labels."""
    return f"sum by ({by}) ({function}(vllm:{metric}{{{selector}}}[{window}]))"


def _alert(
    name: str,
    severity: str,
    held: str,
    expression: str,
    summary: str,
    description: str,
    **labels: str,
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": held,
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": summary, "description": description},
    }


def _of_model(profile: Profile) -> str:
    """The label matcher of a profile's model; Argo Rollouts would replace what stands in braces."""
    name = profile.server.served_model_name or profile.target.model
    text = json.dumps(name, ensure_ascii=False)
    return f"model_name={text.replace('{', chr(92) + 'x7b')}"


def _promised(profile: Profile) -> Iterator[dict[str, Any]]:
    """Alerts if speculation is off, or accepts less than the weakest promise of the profile."""
    selector = _of_model(profile)
    if profile.speculation is not None:
        yield _alert(
            "SpecserveSpeculationMissing",
            "critical",
            "5m",
            f"sum by ({_SERVER}) (vllm:generation_tokens_total{{{selector}}}) "
            f"unless on ({_SERVER}) sum by ({_SERVER}) (vllm:{_DRAFTS}{{{selector}}})",
            "{{ $labels.model_name }} is served without speculation",
            "The profile has a `speculation` block, and the server no speculation counters.",
            profile=profile.name,
        )

    def rate(metric: str) -> str:
        return _gain("rate", metric, selector, "10m", _SERVER)

    for key, expression in (
        ("min_mean_acceptance_length", f"1 + {rate(_ACCEPTED)} / ({rate(_DRAFTS)} > 0)"),
        ("min_acceptance_rate", f"{rate(_ACCEPTED)} / ({rate(_DRAFTED)} > 0)"),
    ):
        found = [getattr(item, key) for item in profile.expect if getattr(item, key) is not None]
        if found:  # counters do not tell workloads apart
            enough = f"{_gain('increase', _DRAFTS, selector, '10m', _SERVER)} >= 1000"
            yield _alert(
                "SpecservePromiseMissed",
                "warning",
                "10m",
                f"({expression}) < {min(found):g} and {enough}",
                f"{{{{ $labels.model_name }}}} misses {key}",
                f'It is {{{{ $value | printf "%.2f" }}}}, and {min(found):g} was promised.',
                profile=profile.name,
                promise=key,
            )


def _canary_losses(window: str, profile: Profile, canary: Profile) -> dict[str, tuple[str, str]]:
    """By figure: PromQL for what the canary loses, and its margin; empty with too few requests.

    Acceptance is a figure only if both draft the same number of tokens.
    """

    def rate(metric: str, pool: str, more: str = "") -> str:
        return _gain("rate", metric, f"{_pool(profile, pool)}{more}", window, "model_name")

    def ratio(pool: str, over: str, under: str, more: str = "") -> str:
        return f"({rate(over, pool, more)} / ({rate(under, pool)} > 0))"

    tpot = {pool: ratio(pool, f"{_TPOT}_sum", f"{_TPOT}_count") for pool in ("canary", "main")}
    accepted = {pool: ratio(pool, _ACCEPTED, _DRAFTED) for pool in ("canary", "main")}
    bad = ',finished_reason=~"error|abort"'
    errors = {pool: ratio(pool, _FINISHED, _FINISHED, bad) for pool in ("canary", "main")}
    losses = {
        "acceptance": (f"{accepted['main']} - {accepted['canary']}", "0.05"),
        "tpot": (f"{tpot['canary']} / ({tpot['main']} > 0) - 1", "0.05"),
        "errors": (f"{errors['canary']} - {errors['main']}", "0.01"),
    }
    keys = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    blocks = [one.speculation.keys for one in (profile, canary) if one.speculation]
    if len(blocks) < 2 or any(blocks[0].get(key) != blocks[1].get(key) for key in keys):
        del losses["acceptance"]
    enough = " and ".join(
        f"{_gain('increase', _FINISHED, _pool(profile, pool), window, 'model_name')} "
        f">= {_CANARY_REQUESTS[window]}"
        for pool in ("canary", "main")
    )
    return {key: (f"({loss}) and {enough}", margin) for key, (loss, margin) in losses.items()}


def _pool(profile: Profile, pool: str) -> str:
    """The label matchers of the series of a pool: `main` or `canary`."""
    return f'{_of_model(profile)},{POOL_LABEL}="{pool}"'


def canary_alerts(profile: Profile, canary: Profile) -> list[dict[str, Any]]:
    """Return the rule group of a canary: to roll back, for each figure, and to promote.

    The rules compare fixed windows at each evaluation: over weeks, equal servers raise them too.
    """
    rules = [
        _alert(
            "SpecserveCanaryRollBack",
            "warning",
            "5m",
            f"({loss}) > {margin}",
            f"The canary of {{{{ $labels.model_name }}}} is worse: {key}",
            "Over 30 minutes it is worse by {{ $value | humanizePercentage }}, more than the "
            f"margin of {margin}. Send its traffic back to the other server.",
            figure=key,
        )
        for key, (loss, margin) in _canary_losses("30m", profile, canary).items()
    ]
    losses = _canary_losses("2h", profile, canary).values()
    promoted = _alert(
        "SpecserveCanaryPromote",
        "info",
        "30m",
        " and ".join(f"(({loss}) <= {margin})" for loss, margin in losses),
        "The canary of {{ $labels.model_name }} can be promoted",
        "Over 2 hours its figures are within their margins of the other server's.",
    )
    return [{"name": f"specserve-canary-{profile.name}", "rules": [*rules, promoted]}]


def canary_analysis(profile: Profile, canary: Profile) -> dict[str, Any]:
    """Return the `spec` of an AnalysisTemplate of Argo Rollouts: what the canary loses."""
    address = Commented(
        "assumed: name yours in your own kustomization",
        "http://prometheus-operated.monitoring.svc:9090",
    )
    found = [
        {
            "name": name,
            "interval": "1m",
            "count": 30,
            "failureLimit": 3,
            "inconclusiveLimit": 30,
            "successCondition": f"len(result) > 0 && result[0] <= {margin}",
            "failureCondition": f"len(result) > 0 && result[0] > {margin}",
            "provider": {"prometheus": {"address": address, "query": loss}},
        }
        for name, (loss, margin) in _canary_losses("10m", profile, canary).items()
    ]
    note = "each evaluation compares means over 10 minutes; equal servers fail one now and then"
    return {"metrics": Commented(note, found)}


def monitoring(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return what Prometheus and Grafana on the machine of a running server read.

    A canary is expected on the same host, one port higher.
    """
    jobs, groups = [_job(made, "main", made)], alert_groups(made.profile)
    if made.canary:
        canary = made.canary.made
        plan = replace(canary.plan, port=made.plan.port + 1)
        jobs.append(_job(made, "canary", replace(canary, plan=plan)))
        groups += canary_alerts(made.profile, canary.profile)
    prometheus = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["specserve.rules.yml"],
        "scrape_configs": jobs,
    }
    texts = {
        "prometheus.yml": yaml_text(prometheus, head=made.head),
        "specserve.rules.yml": yaml_text({"groups": groups}, head=HEAD),
        "dashboard.json": dashboard(),
    }
    return tuple(Artifact(path, text, alone=False) for path, text in texts.items())


def _job(main: Deployment, pool: str, made: Deployment) -> dict[str, Any]:
    """How Prometheus reads one server."""
    labels = {"profile": main.profile.name, "fingerprint": made.plan.fingerprint[:16]}
    if main.canary:
        labels[POOL_LABEL] = pool
    name = main.name if pool == "main" else f"{main.name}-{pool}"
    job: dict[str, Any] = {"job_name": name, "scheme": made.scheme}
    if made.scheme == "https":
        job["tls_config"] = {"insecure_skip_verify": True}
    servers = [{"targets": [f"{made.reached_host}:{made.plan.port}"], "labels": labels}]
    job["static_configs"] = Commented("the server; /metrics asks for no key", servers)
    return job
