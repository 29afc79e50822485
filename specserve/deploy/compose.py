"""Docker compose: one host, the server, and on demand Prometheus and Grafana beside it. Starts none of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specserve.deploy.deployment import (
    HOME_NOTE,
    MODELS,
    Artifact,
    Deployment,
    environment,
    question,
    staging,
)
from specserve.deploy.monitoring import monitoring_files
from specserve.deploy.pools import caddyfile
from specserve.errors import UsageError
from specserve.plan.launchplan import FromEnv
from specserve.profile.writer import Commented, yaml_text

PROMETHEUS = "prom/prometheus:v3.7.3"
PROMETHEUS_URL = "http://prometheus:9090"
GRAFANA = "grafana/grafana:12.3.0"
PROXY = "caddy:2.11.7"
_UNPRIVILEGED: dict[str, Any] = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
_START = """\
docker compose up --wait          (first: export HF_TOKEN=… for gated models)
docker compose --profile monitoring up --wait     with Prometheus on port 9090 and Grafana on 3000"""


def compose(made: Deployment, folder: str) -> tuple[Artifact, ...]:
    """Returns compose.yaml, and what Prometheus and Grafana read. `folder`: the output folder, for relative paths.

    Raises UsageError for a server that spans several hosts.
    """
    if made.nodes > 1:
        raise UsageError(
            (
                f"{made.profile.span('hardware.nodes')}: Docker Compose runs on one host, but this profile "
                f"needs {made.nodes}"
            ),
            hint="use `--to kubernetes`, or `--to systemd` for a unit on each host",
        )
    stages = {
        name: _stage(one)
        for name, one in (("stage", made), ("stage-canary", _canary(made)))
        if one and one.downloads
    }
    services = {**stages, **_pools(made, folder=folder), **_monitoring()}
    volumes: dict[str, Any] = {"home": {}, "prometheus": {}, "grafana": {}}
    content = {"name": made.name, "services": services, "volumes": volumes}
    observing = monitoring_files(made, target=f"vllm:{made.plan.port}", prometheus_url=PROMETHEUS_URL)
    proxy = (Artifact("proxy/Caddyfile", caddyfile(made), alone=False),) if _is_behind_proxy(made) else ()
    return (Artifact("compose.yaml", yaml_text(content, head=f"{made.head}\n\n{_START}")), *proxy, *observing)


def _canary(made: Deployment) -> Deployment | None:
    return made.canary.made if made.canary else None


def _is_behind_proxy(made: Deployment) -> bool:
    return made.canary is not None or made.has_plain_pool


def _pools(made: Deployment, *, folder: str) -> dict[str, Any]:
    """The server; with more pools, each on a port and on accelerators of its own, and a proxy before them all."""
    if not _is_behind_proxy(made):
        return {"vllm": _server(made, folder=folder)}
    pools = {"vllm": made}
    if made.canary:
        pools["vllm-canary"] = made.canary.made
    if made.has_plain_pool and made.plain:
        pools["vllm-plain"] = replace(made, plan=made.plain)
    found: dict[str, Any] = {}
    for number, (name, one) in enumerate(pools.items()):
        found[name] = _server(one, folder=folder, stage="stage-canary" if name == "vllm-canary" else "stage")
        found[name]["ports"] = Commented(
            "past the proxy, for `specserve watch`",
            [f"127.0.0.1:{made.plan.port + 1 + number}:{one.plan.port}"],
        )
        if not made.is_cpu:
            found[name]["deploy"] = _accelerators(one, first=number * made.ranks_per_node)
    started = {name: {"condition": "service_healthy"} for name in pools}
    return {**found, "proxy": _proxy(made.plan.port, started)}


def _proxy(port: int, started: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": PROXY,
        **_UNPRIVILEGED,
        "cap_add": Commented("caddy's program carries it, and does not start without", ["NET_BIND_SERVICE"]),
        "read_only": True,
        "tmpfs": ["/data", "/config"],
        "ports": Commented(
            "this host only; a proxy with TLS in front of it may be reached by others",
            [f"127.0.0.1:{port}:{port}"],
        ),
        "volumes": ["./proxy:/etc/caddy:ro"],
        "depends_on": started,
        "restart": "unless-stopped",
    }


def _accelerators(made: Deployment, *, first: int) -> dict[str, Any]:
    """GPUs that no other pool of this host has. Raises UsageError if the profile names them otherwise."""
    if made.devices:
        raise UsageError(
            f"{made.profile.span('hardware.devices')}: `hardware.devices` names the GPUs of one server, but "
            "several servers are rendered",
            hint="remove it, and set `device_ids` in the rendered file",
        )
    ids = [str(first + rank) for rank in range(made.ranks_per_node)]
    note = "of this host, in the order of the pools: change them to yours"
    which = {"device_ids": Commented(note, ids)}
    return {
        "resources": {"reservations": {"devices": [{"driver": "nvidia", **which, "capabilities": ["gpu"]}]}}
    }


def _server(made: Deployment, *, folder: str, stage: str = "stage") -> dict[str, Any]:
    plan = made.plan
    variables = environment(made, cache=_cache(made))
    service: dict[str, Any] = {
        "image": made.image.commented,
        "labels": {f"specserve.{key.rpartition('/')[2]}": value for key, value in made.labels.items()},
        "entrypoint": list(plan.argv[:2]),
        "command": [literal(word) for word in plan.argv[2:]],
    }
    if made.mounts:
        service["working_dir"] = Commented("paths in the command are seen from here", MODELS)
    service |= {
        "environment": {name: literal(value) for name, value in variables.items()} | _secrets(made),
        "ports": Commented(
            "this host only; a proxy with TLS in front of it may be reached by others",
            [f"127.0.0.1:{plan.port}:{plan.port}"],
        ),
        "volumes": _volumes(made, folder=folder),
        "shm_size": Commented("NCCL and vLLM's message queues", f"{made.shm_gib}gb"),
        "healthcheck": {
            "test": ["CMD", *question(made, port=plan.port)],
            "start_period": Commented(made.start_limit_from, f"{made.start_limit_s}s"),
            "start_interval": "5s",
            "interval": "15s",
            "timeout": "10s",
            "retries": 6,
        },
        "stop_grace_period": Commented("server.shutdown_timeout_s and 30 s more", f"{made.grace_s}s"),
        **_confined(made),
        "restart": "unless-stopped",
    }
    if not made.is_cpu:
        which: dict[str, Any] = {"device_ids": [str(device) for device in made.devices]}
        if not made.devices:
            note = "of this host; `hardware.devices` names certain ones"
            which = {"count": Commented(note, made.ranks_per_node)}
        devices = [{"driver": "nvidia", **which, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    if made.downloads:
        service["depends_on"] = {stage: {"condition": "service_completed_successfully"}}
    return service


def _stage(made: Deployment) -> dict[str, Any]:
    """Downloads every repository, or fails: vLLM starts only then."""
    script = " && ".join(shlex.join(staging(download)) for download in made.downloads)
    return {
        "image": made.image.reference,
        "entrypoint": ["sh", "-ec"],
        "command": [literal(script)],
        "environment": {"HOME": made.image.home, "HF_HOME": _cache(made), "HF_TOKEN": "${HF_TOKEN:-}"},
        "volumes": [f"home:{made.image.home}"],
        **_confined(made),
        "restart": "on-failure:3",
    }


def _cache(made: Deployment) -> str:
    """In the user's home, for a new volume has the owner that the image gives its place."""
    return f"{made.image.home}/.cache/huggingface"


def _confined(made: Deployment) -> dict[str, Any]:
    """No root, no privilege, and nothing to write but the volumes."""
    user = f"{made.image.uid}:{made.image.gid}"
    return {
        "user": Commented("must be a user in the image's /etc/passwd: torch fails for any other uid", user),
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108  # a path of the container
        **_UNPRIVILEGED,
        "init": True,
    }


def _secrets(made: Deployment) -> dict[str, str]:
    """By reference to variables of whoever starts it."""
    found = {
        name: f"${{{value.name}:?the server's API key}}"
        for name, value in made.plan.env.items()
        if isinstance(value, FromEnv)
    }
    return found if made.may_be_offline else {**found, "HF_TOKEN": "${HF_TOKEN:-}"}


def _volumes(made: Deployment, *, folder: str) -> list[Any]:
    found: list[Any] = [Commented(f"models of the Hub; {HOME_NOTE}", f"home:{made.image.home}")]
    for mount in made.mounts:
        paths = {"source": literal(seen_from(mount.path, folder)), "target": f"{MODELS}/{mount.name}"}
        bind = {"create_host_path": False}
        found.append({"type": "bind", **paths, "read_only": True, "bind": bind})
    return found


def seen_from(path: str, folder: str) -> str:
    """Returns a path as a file in `folder` names it: relative if both lie in one tree, else as it is."""
    relative = os.path.relpath(path, folder)
    if os.path.commonpath([path, folder]) == "/" or relative.split("/").count("..") > 4:
        return path
    return relative if relative.startswith("..") else f"./{relative}"


def _monitoring() -> dict[str, Any]:
    shared = {"profiles": ["monitoring"], "restart": "unless-stopped", **_UNPRIVILEGED}
    return {
        "prometheus": {
            "image": PROMETHEUS,
            **shared,
            "command": ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.retention.time=30d"],
            "ports": ["127.0.0.1:9090:9090"],
            "volumes": ["./prometheus:/etc/prometheus:ro", "prometheus:/prometheus"],
        },
        "grafana": {
            "image": GRAFANA,
            **shared,
            "environment": {
                "GF_SECURITY_ADMIN_PASSWORD": "${GRAFANA_PASSWORD:-admin}",
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
            },
            "ports": ["127.0.0.1:3000:3000"],
            "volumes": [
                "./grafana/provisioning:/etc/grafana/provisioning:ro",
                "./grafana/dashboards:/etc/dashboards:ro",
                "grafana:/var/lib/grafana",
            ],
            "depends_on": ["prometheus"],
        },
    }


def literal(text: str) -> str:
    """Compose would replace `$NAME` in it."""
    return text.replace("$", "$$")
