"""Prometheus and Grafana beside one server: who is asked, which rules hold, which dashboard shows it."""

from __future__ import annotations

from typing import Any

from specserve.deploy.artifact import Artifact
from specserve.deploy.deployment import Deployment
from specserve.deploy.monitoring.dashboard import dashboard
from specserve.deploy.monitoring.rules import alert_rules
from specserve.deploy.yamltext import Note, yaml_text

PROMETHEUS_URL = "http://prometheus:9090"


def groups(made: Deployment) -> list[dict[str, Any]]:
    """The groups of rules, as a list."""
    import yaml

    found: list[dict[str, Any]] = yaml.safe_load(alert_rules(made.profile))["groups"]
    return found


def observing(made: Deployment, *, target: str, prometheus_url: str) -> tuple[Artifact, ...]:
    """The files. `target`: host and port at which Prometheus finds the server."""
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
    where = Note("the server; /metrics asks for no key", [{"targets": [target], "labels": labels}])
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
