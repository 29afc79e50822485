"""Docker Compose: one host, vLLM or SGLang, and on demand Prometheus and Grafana beside vLLM. Starts none of them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specserve.deploy.deployment import (
    HOME_NOTE,
    MODELS,
    USER_NOTE,
    Artifact,
    Deployment,
    Image,
    environment,
    official,
    question,
    rendered_head,
    staging,
)
from specserve.deploy.monitoring import monitoring_files
from specserve.errors import UsageError
from specserve.plan.launchplan import FromEnv, shell
from specserve.profile.writer import Commented, Reference, comment, yaml_text
from specserve.sglang.options import VERSION, launch_sglang

PROMETHEUS = "prom/prometheus:v3.7.3"
PROMETHEUS_URL = "http://prometheus:9090"
GRAFANA = "grafana/grafana:12.3.0"
PROXY = "caddy:2.11.7"
Service = dict[str, Any]
_UNPRIVILEGED: Service = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
_TOKEN = Reference("${HF_TOKEN:-}")
_LOOPBACK = "this host only; a proxy with TLS in front of it may be reached by others"
_START = "docker compose up --wait"
_GATED = "          (first: export HF_TOKEN=… for gated models)"
_START_ALL = (
    "docker compose --profile monitoring up --wait     with Prometheus on port 9090 and Grafana on 3000"
)


def compose(made: Deployment, folder: str) -> tuple[Artifact, ...]:
    """Return compose.yaml, and what Prometheus and Grafana read. `folder`: the output folder, for relative paths.

    Raises UsageError for a server that spans several hosts.
    """
    if made.nodes > 1:
        raise UsageError(
            f"{made.profile.span('hardware.nodes')}: Docker Compose runs on one host, but this profile needs "
            f"{made.nodes}",
            hint="use `--to kubernetes`, or `--to systemd` for a unit on each host",
        )
    staged = {"stage": made, **({"stage-canary": made.canary.made} if made.canary else {})}
    services = {name: _stage(one) for name, one in staged.items() if one.downloads}
    services |= _behind_proxy(made, folder) if made.canary else {"vllm": _server(made, folder)}
    content = {
        "name": made.name,
        "services": {**services, **_monitoring()},
        "volumes": {"home": {}, "prometheus": {}, "grafana": {}},
    }
    observing = monitoring_files(made, _pools(made), prometheus_url=PROMETHEUS_URL)
    proxy = [Artifact("proxy/Caddyfile", _caddyfile(made), alone=False)] if made.canary else []
    start = _START + (_GATED if any(one.downloads for one in staged.values()) else "")
    text = yaml_text(_literal(content), head=f"{made.head}\n\n{start}\n{_START_ALL}")
    return (Artifact("compose.yaml", text), *proxy, *observing)


def _pools(made: Deployment) -> dict[str, tuple[str, Deployment]]:
    """Every server, with the name of its service."""
    found = {"main": ("vllm", made)}
    if made.canary:
        found["canary"] = ("vllm-canary", made.canary.made)
    return found


def _behind_proxy(made: Deployment, folder: str) -> Service:
    """Several servers, each on a port and on accelerators of its own, and a proxy before them all."""
    pools = dict(_pools(made).values())
    port, found = made.plan.port, {}
    for number, (name, one) in enumerate(pools.items()):
        found[name] = _server(one, folder, stage="stage-canary" if name == "vllm-canary" else "stage")
        published = [f"127.0.0.1:{port + 1 + number}:{one.plan.port}"]
        found[name]["ports"] = Commented("past the proxy, for `specserve watch`", published)
        if made.devices and not made.is_cpu:
            raise UsageError(
                f"{made.profile.span('hardware.devices')}: `hardware.devices` names the GPUs of one server, but "
                "several servers are rendered",
                hint="remove it, and set `device_ids` in compose.override.yaml",
            )
        first = number * made.ranks_per_node
        ids = [str(first + rank) for rank in range(made.ranks_per_node)]
        note = "of this host, in the order of the pools: compose.override.yaml can name others"
        found[name] |= _gpus(one, {"device_ids": Commented(note, ids)})
    found["proxy"] = {
        "image": PROXY,
        **_UNPRIVILEGED,
        "cap_add": Commented("caddy's program carries it, and does not start without", ["NET_BIND_SERVICE"]),
        "read_only": True,
        "tmpfs": ["/data", "/config"],
        "ports": _ports(made),
        "volumes": ["./proxy:/etc/caddy:ro"],
        "depends_on": {name: {"condition": "service_healthy"} for name in pools},
        "restart": "unless-stopped",
    }
    return found


def _ports(made: Deployment) -> Commented:
    """Where clients reach it: at `server.host` if that is an address beyond this host, else on loopback."""
    port, address = made.plan.port, "127.0.0.1"
    with contextlib.suppress(ValueError):  # a name, which compose does not take
        found = ipaddress.ip_address(made.host)
        if not found.is_loopback:
            address = f"[{found}]" if found.version == 6 else str(found)
    note = _LOOPBACK if address == "127.0.0.1" else "the address that the profile's `server.host` names"
    return Commented(note, [f"{address}:{port}:{port}"])


def _caddyfile(made: Deployment) -> str:
    """The proxy's configuration: requests are shared by weight."""
    port, (main, canary) = made.plan.port, made.shares
    lines = ["{", "\tadmin off", "\tauto_https off", "}", "", f":{port} {{"]
    lines += [f"\treverse_proxy vllm:{port} vllm-canary:{port} {{"]
    lines += [f"\t\tlb_policy weighted_round_robin {main} {canary}", "\t\tlb_try_duration 5s"]
    lines += ["\t\tflush_interval -1", "\t}", "}"]
    return comment(made.head) + "\n".join(lines) + "\n"


def _served(made: Deployment, argv: Sequence[str], image: Image, folder: str, *, home: str) -> Service:
    """What a service of vLLM and one of SGLang have in common. `home`: its volume, with a comment."""
    port = made.plan.port
    labels = {f"specserve.{key.rpartition('/')[2]}": value for key, value in made.labels.items()}
    volumes: list[Any] = [home]
    for mount in made.mounts:
        paths = {"source": seen_from(mount.path, folder), "target": f"{MODELS}/{mount.name}"}
        volumes.append({"type": "bind", **paths, "read_only": True, "bind": {"create_host_path": False}})
    where = {"working_dir": Commented("paths in the command are seen from here", MODELS)}
    return {
        "image": image.commented,
        "labels": labels,
        "entrypoint": list(argv[:2]),
        "command": list(argv[2:]),
        **(where if made.mounts else {}),
        "environment": {},
        "ports": _ports(made),
        "volumes": volumes,
        "healthcheck": {
            "test": ["CMD", *question(made, port=port)],
            "start_period": Commented(made.start_limit_from, f"{made.start_limit_s}s"),
            "start_interval": "5s",
            "interval": "15s",
            "timeout": "10s",
            "retries": 6,
        },
        "stop_grace_period": Commented(made.grace_from, f"{made.grace_s}s"),
        "restart": "unless-stopped",
        **_gpus(made),
    }


def _gpus(made: Deployment, which: Service | None = None) -> Service:
    """The accelerators: those that the profile names, so many as it needs, or `which`."""
    if made.is_cpu:
        return {}
    note = "of this host; `hardware.devices` names certain ones"
    some = {"count": Commented(note, made.ranks_per_node)}
    named = {"device_ids": [str(device) for device in made.devices]}
    device = {"driver": "nvidia", **(which or (named if made.devices else some)), "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


def _server(made: Deployment, folder: str, *, stage: str = "stage") -> Service:
    home: Any = Commented(f"models of the Hub; {HOME_NOTE}", f"home:{made.image.home}")
    values = environment(made, cache=_cache(made))
    for name, value in made.plan.env.items():  # by reference to variables of the shell that starts it
        if isinstance(value, FromEnv):
            values[name] = Reference(f"${{{value.name}:?the server's API key}}")
    if not made.may_be_offline:
        values["HF_TOKEN"] = _TOKEN
    service = _served(made, made.plan.argv, made.image, folder, home=home)
    service |= {
        "environment": values,
        "shm_size": Commented("NCCL and vLLM's message queues", f"{made.shm_gib}gb"),
        **_confined(made),
    }
    if made.downloads:
        service["depends_on"] = {stage: {"condition": "service_completed_successfully"}}
    return service


def _stage(made: Deployment) -> Service:
    """Downloads every repository, or fails: vLLM starts only then."""
    script = " && ".join(shlex.join(staging(download)) for download in made.downloads)
    return {
        "image": made.image.reference,
        "entrypoint": ["sh", "-ec"],
        "command": [script],
        "environment": {"HOME": made.image.home, "HF_HOME": _cache(made), "HF_TOKEN": _TOKEN},
        "volumes": [f"home:{made.image.home}"],
        **_confined(made),
        "restart": "on-failure:3",
    }


def _cache(made: Deployment) -> str:
    """In the user's home, for a new volume has the owner that the image gives its place."""
    return f"{made.image.home}/.cache/huggingface"


def _confined(made: Deployment) -> Service:
    """No root, no privilege, and nothing to write but the volumes."""
    return {
        "user": Commented(USER_NOTE, f"{made.image.uid}:{made.image.gid}"),
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108  # a path of the container
        **_UNPRIVILEGED,
        "init": True,
    }


def seen_from(path: str, folder: str) -> str:
    """Return a path as a file in `folder` names it: relative if both lie in one tree, else as it is."""
    relative = os.path.relpath(path, folder)
    if os.path.commonpath([path, folder]) == "/" or relative.split("/").count("..") > 4:
        return path
    return relative if relative.startswith("..") else f"./{relative}"


def _monitoring() -> Service:
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
                "GF_SECURITY_ADMIN_PASSWORD": Reference("${GRAFANA_PASSWORD:-admin}"),
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


def _literal(value: Any) -> Any:
    """The value with all texts in it such that Compose replaces no `$NAME` there, except in a `Reference`."""
    if isinstance(value, Commented):
        return Commented(value.comment, _literal(value.value))
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(item) for item in value]
    is_text = isinstance(value, str) and not isinstance(value, Reference)
    return value.replace("$", "$$") if is_text else value


_SGLANG_HOME = "/root"
"""The image runs as root, and its Hub cache lies there. Source: docker/compose.yaml of sgl-project/sglang."""


def sglang_image(made: Deployment) -> Image:
    """Return the official image of this SGLang, or the one that stands in a deployment for vLLM's official one.

    Source: `docker pull lmsysorg/sglang:latest` in the description of the wheel, METADATA 0.5.23.
    """
    is_vllms = made.image == official(made.plan.vllm, platform=made.plan.platform)
    reference = f"lmsysorg/sglang:v{VERSION}" if is_vllms else made.image.reference
    return Image(reference, uid=0, gid=0, home=_SGLANG_HOME)


def sglang(made: Deployment, folder: str) -> tuple[Artifact, ...]:
    """Return launch.sh and compose.yaml that serve the profile with SGLang. `folder`: for relative paths.

    Raises UsageError that names every setting of the profile without a counterpart.
    """
    profile = made.profile
    bare = launch_sglang(replace(profile, server=replace(profile.server, host=made.host)))
    warning = "specserve has never started SGLang: measure before you rely on it."
    notes = "".join(f"\n- {note}" for note in bare.notes)
    head = f"{rendered_head(made, f'SGLang {VERSION}', bare.fingerprint)}\n{warning}{notes}"
    beside = comment(f"Run it in the folder that holds {made.mounted}" if made.mounts else "")
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in bare.env.items())
    script = f"#!/bin/sh\n{comment(head)}set -eu\n{beside}{exported}exec {shell(replace(bare, env={}))}"
    inside = launch_sglang(profile)
    home: Any = Commented("models of the Hub, and what SGLang compiles", f"home:{_SGLANG_HOME}/.cache")
    service = _served(made, inside.argv, sglang_image(made), folder, home=home)
    service |= {
        "environment": {**inside.env, "HF_TOKEN": _TOKEN},
        "ipc": Commented("as SGLang's own compose file has it", "host"),
        "security_opt": ["no-new-privileges:true"],
        "init": True,
    }
    service["labels"]["specserve.version"] = VERSION
    start = f"{made.start_limit_from}{', plus the download at 100 MB/s' if made.downloads else ''}"
    service["healthcheck"]["start_period"] = Commented(start, f"{made.download_s + made.start_limit_s}s")
    content = {"name": made.name, "services": {"sglang": service}, "volumes": {"home": {}}}
    text = yaml_text(_literal(content), head=f"{head}\n\n{_START}{_GATED if made.downloads else ''}")
    return (Artifact("launch.sh", script), Artifact("compose.yaml", text, alone=False))
