"""Prometheus' alert rules and Grafana's dashboard for one server, by PromQL on vLLM's counters."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import yaml

from specserve.deploy.deployment import Artifact, Deployment
from specserve.profile.schema import Profile
from specserve.profile.writer import Commented, yaml_text
from specserve.vllm.speculation import SCHEDULE

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


def shipped(name: str) -> str:
    """Return a file of this folder: `alerts.yaml` or `dashboard.json`."""
    return (files("specserve.deploy") / name).read_text(encoding="utf-8")


def alert_groups(profile: Profile) -> list[dict[str, Any]]:
    """Return the groups of rules: recorded figures, general alerts, the profile's promises."""
    groups: list[dict[str, Any]] = yaml.safe_load(shipped("alerts.yaml"))["groups"]
    if promised := _promised(profile):
        groups.append({"name": f"specserve-promises-{profile.name}", "rules": promised})
    return groups


def _gain(function: str, metric: str, selector: str, window: str, by: str) -> str:
    """PromQL for `rate` or `increase` of a counter of vLLM's, summed over all but these labels."""
    return f"sum by ({by}) ({function}(vllm:{metric}{{{selector}}}[{window}]))"


def _alert(
    name: str, severity: str, held: str, expr: str, summary: str, text: str, **labels: str
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": held,
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": f"{{{{ $labels.model_name }}}} {summary}", "description": text},
    }


def _of_model(profile: Profile) -> str:
    """The label matcher of a profile's model; Argo Rollouts would replace what stands in braces."""
    name = profile.server.served_model_name or profile.target.model
    text = json.dumps(name, ensure_ascii=False)
    return f"model_name={text.replace('{', chr(92) + 'x7b')}"


def _promised(profile: Profile) -> list[dict[str, Any]]:
    """Alerts if speculation is off, or accepts less than the weakest promise of the profile."""
    if profile.speculation is None:
        return []
    selector = _of_model(profile)
    missing = (
        f"sum by ({_SERVER}) (vllm:generation_tokens_total{{{selector}}}) "
        f"unless on ({_SERVER}) sum by ({_SERVER}) (vllm:{_DRAFTS}{{{selector}}})"
    )
    text = "The profile has a `speculation` block, and the server no speculation counters."
    name = "SpecserveSpeculationMissing"
    summary, labels = "is served without speculation", {"profile": profile.name}
    found = [_alert(name, "critical", "5m", missing, summary, text, **labels)]
    drafts, drafted, accepted = (
        _gain("rate", metric, selector, "10m", _SERVER) for metric in (_DRAFTS, _DRAFTED, _ACCEPTED)
    )
    enough = f"{_gain('increase', _DRAFTS, selector, '10m', _SERVER)} >= 1000"
    for key, figure in (
        ("min_mean_acceptance_length", f"1 + {accepted} / ({drafts} > 0)"),
        ("min_acceptance_rate", f"{accepted} / ({drafted} > 0)"),
    ):
        promised = [getattr(item, key) for item in profile.expect if getattr(item, key) is not None]
        if promised:  # counters do not tell workloads apart
            least, labels = min(promised), {"profile": profile.name, "promise": key}
            text = f'It is {{{{ $value | printf "%.2f" }}}}, and {least:g} was promised.'
            expr = f"({figure}) < {least:g} and {enough}"
            name = "SpecservePromiseMissed"
            found.append(_alert(name, "warning", "10m", expr, f"misses {key}", text, **labels))
    return found


def _canary_losses(window: str, profile: Profile, canary: Profile) -> dict[str, tuple[str, str]]:
    """By figure: PromQL for what the canary loses, and its margin; empty with too few requests.

    Acceptance is a figure only if both draft the same number of tokens.
    """
    both = ("canary", "main")
    of = {pool: f'{_of_model(profile)},{POOL_LABEL}="{pool}"' for pool in both}

    def ratios(over: str, under: str, more: str = "") -> list[str]:
        parts = [
            (
                _gain("rate", over, f"{of[pool]}{more}", window, "model_name"),
                _gain("rate", under, of[pool], window, "model_name"),
            )
            for pool in both
        ]
        return [f"({above} / ({below} > 0))" for above, below in parts]

    losses = {}
    keys = ("num_speculative_tokens", SCHEDULE)
    blocks = [one.speculation.keys for one in (profile, canary) if one.speculation]
    if len(blocks) == 2 and all(blocks[0].get(key) == blocks[1].get(key) for key in keys):
        mine, main = ratios(_ACCEPTED, _DRAFTED)
        losses["acceptance"] = (f"{main} - {mine}", "0.05")
    mine, main = ratios(f"{_TPOT}_sum", f"{_TPOT}_count")
    losses["tpot"] = (f"{mine} / ({main} > 0) - 1", "0.05")
    mine, main = ratios(_FINISHED, _FINISHED, ',finished_reason=~"error|abort"')
    losses["errors"] = (f"{mine} - {main}", "0.01")
    enough = " and ".join(
        f"{_gain('increase', _FINISHED, of[pool], window, 'model_name')} >= "
        f"{_CANARY_REQUESTS[window]}"
        for pool in both
    )
    return {key: (f"({loss}) and {enough}", margin) for key, (loss, margin) in losses.items()}


def canary_alerts(profile: Profile, canary: Profile) -> list[dict[str, Any]]:
    """Return the rule group of a canary: to roll back, for each figure, and to promote.

    The rules compare fixed windows at each evaluation: over weeks, equal servers raise them too.
    """
    rules = []
    for key, (loss, margin) in _canary_losses("30m", profile, canary).items():
        text = (
            "Over 30 minutes it is worse by {{ $value | humanizePercentage }}, more than the "
            f"margin of {margin}. Send its traffic back to the other server."
        )
        name, expr = "SpecserveCanaryRollBack", f"({loss}) > {margin}"
        summary = f"has a canary that is worse: {key}"
        rules.append(_alert(name, "warning", "5m", expr, summary, text, figure=key))
    losses = _canary_losses("2h", profile, canary).values()
    text = "Over 2 hours its figures are within their margins of the other server's."
    expr = " and ".join(f"(({loss}) <= {margin})" for loss, margin in losses)
    summary = "has a canary that can be promoted"
    rules.append(_alert("SpecserveCanaryPromote", "info", "30m", expr, summary, text))
    return [{"name": f"specserve-canary-{profile.name}", "rules": rules}]


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
        "dashboard.json": shipped("dashboard.json"),
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
    servers = [{"targets": [made.address], "labels": labels}]
    job["static_configs"] = Commented("the server; /metrics asks for no key", servers)
    return job
