"""Docker Compose: vLLM on one host, by its image. Starts nothing."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from typing import Any

from specserve.deploy.deployment import (
    MODELS,
    USER_NOTE,
    Artifact,
    Deployment,
    Reference,
    environment,
    literal,
    places,
    staging_script,
)
from specserve.errors import UsageError
from specserve.profile.writer import Commented, yaml_text

Service = dict[str, Any]
_TOKEN = Reference("${HF_TOKEN:-}")


def compose(made: Deployment, folder: str) -> tuple[Artifact, ...]:
    """Return compose.yaml. `folder`: the output folder, for relative paths.

    Raises UsageError for a server that spans several hosts.
    """
    if made.nodes > 1:
        place = made.profile.span("hardware.nodes")
        raise UsageError(
            f"{place}: Docker Compose runs on one host, but this profile needs {made.nodes}",
            hint="use `--to kubernetes`, or `--to systemd` for a unit on each host",
        )
    services = {"vllm": _server(made, folder)}
    if made.downloads:  # vLLM starts only when every repository is there
        stage = {
            "image": made.image.reference,
            "entrypoint": ["sh", "-ec"],
            "command": [staging_script(made)],
            "environment": {**places(made.image.home), "HF_TOKEN": _TOKEN},
            "volumes": [f"home:{made.image.home}"],
            **_confined(made),
            "restart": "on-failure:3",
        }
        services["vllm"]["depends_on"] = {"stage": {"condition": "service_completed_successfully"}}
        services = {"stage": stage, **services}
    content = {"name": made.name, "services": services, "volumes": {"home": {}}}
    before = [] if made.is_cpu else ["Needs the NVIDIA Container Toolkit."]
    sources = ", ".join(f"`{seen_from(path, folder)}`" for path in made.mounts.values())
    before += [f"Needs {sources}, seen from this folder."] if made.mounts else []
    before += [f"export {name}=…" for name in made.secrets.values()]
    before += ["export HF_TOKEN=… (for gated models)"] if made.downloads else []
    head = "\n".join([made.head, "", *before, "docker compose up --wait"])
    return (Artifact("compose.yaml", yaml_text(literal(content), head=head)),)


def _server(made: Deployment, folder: str) -> Service:
    values = environment(made)
    for name, variable in made.secrets.items():  # of the shell that starts it
        values[name] = Reference(f"${{{variable}:?the server's API key}}")
    if not made.may_be_offline:
        values["HF_TOKEN"] = _TOKEN
    note = "models of the Hub, and what vLLM, torch and Triton compile"
    volumes: list[Any] = [Commented(note, f"home:{made.image.home}")]
    for mount, path in made.mounts.items():
        paths = {"source": seen_from(path, folder), "target": f"{MODELS}/{mount}"}
        bind = {"create_host_path": False}
        volumes.append({"type": "bind", **paths, "read_only": True, "bind": bind})
    where = {"working_dir": Commented("paths in the command are seen from here", MODELS)}
    insecure = ["--insecure"] if made.scheme == "https" else []
    health = f"{made.scheme}://127.0.0.1:{made.plan.port}/health"
    ask = ["curl", "--fail", "--silent", "--show-error", "--max-time", "5", *insecure, health]
    service = {
        "image": made.image.reference,
        "labels": {"specserve.fingerprint": made.plan.fingerprint[:16]},
        "entrypoint": list(made.plan.argv[:2]),
        "command": list(made.plan.argv[2:]),
        **(where if made.mounts else {}),
        "environment": values,
        "ports": _ports(made),
        "volumes": volumes,
        "healthcheck": {
            "test": ["CMD", *ask],
            "start_period": Commented(made.start_limit_from, f"{made.start_limit_s}s"),
            "start_interval": "5s",
            "interval": "15s",
            "timeout": "10s",
            "retries": 6,
        },
        "stop_grace_period": f"{made.grace_s}s",
        "restart": "unless-stopped",
        "shm_size": Commented("NCCL and vLLM's message queues", f"{made.shm_gib}gb"),
        **_confined(made),
    }
    if not made.is_cpu:
        note = "of this host; `hardware.devices` names certain ones"
        device: Service = {"driver": "nvidia", "capabilities": ["gpu"]}
        if made.devices:
            device["device_ids"] = [str(one) for one in made.devices]
        else:
            device["count"] = Commented(note, made.ranks_per_node)
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service


def _ports(made: Deployment) -> Commented:
    """Where clients reach it: `server.host` if others reach that address, else loopback."""
    port, address = made.plan.port, "127.0.0.1"
    with contextlib.suppress(ValueError):  # a name, which compose does not take
        found = ipaddress.ip_address(made.host)
        if not found.is_loopback:
            address = f"[{found}]" if found.version == 6 else str(found)
    note = "the address that the profile's `server.host` names"
    if address == "127.0.0.1":
        note = "this host only; a proxy with TLS in front of it may be reached by others"
    return Commented(note, [f"{address}:{port}:{port}"])


def _confined(made: Deployment) -> Service:
    """No root, no privilege, and nothing to write but the volumes."""
    return {
        "user": Commented(USER_NOTE, f"{made.image.uid}:{made.image.gid}"),
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108  # a path of the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,
    }


def seen_from(path: str, folder: str) -> str:
    """Return a path as a file in `folder` names it: relative if both lie in one tree."""
    relative = os.path.relpath(path, folder)
    if os.path.commonpath([path, folder]) == "/" or relative.split("/").count("..") > 4:
        return path
    return relative if relative.startswith("..") else f"./{relative}"
