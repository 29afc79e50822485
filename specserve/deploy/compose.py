"""Docker Compose: vLLM or SGLang on one host. Starts neither."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specserve.deploy.deployment import (
    MODELS,
    USER_NOTE,
    Artifact,
    Deployment,
    Reference,
    environment,
    question,
    rendered_head,
    staging,
)
from specserve.errors import UsageError
from specserve.plan.launchplan import FromEnv, shell
from specserve.profile.writer import Commented, comment, yaml_text
from specserve.sglang.options import VERSION, launch_sglang

Service = dict[str, Any]
_TOKEN = Reference("${HF_TOKEN:-}")
_LOOPBACK = "this host only; a proxy with TLS in front of it may be reached by others"


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
    stage = {"stage": _stage(made)} if made.downloads else {}
    services = {**stage, "vllm": _server(made, folder)}
    content = {"name": made.name, "services": services, "volumes": {"home": {}}}
    keys = [value.name for value in made.plan.env.values() if isinstance(value, FromEnv)]
    text = yaml_text(_literal(content), head=f"{made.head}\n\n{_start(made, keys)}")
    return (Artifact("compose.yaml", text),)


def _start(made: Deployment, keys: Sequence[str]) -> str:
    """How to start it, and what must be there before."""
    exported = [f"export {name}=…" for name in keys]
    exported += ["export HF_TOKEN=… (for gated models)"] if made.downloads else []
    toolkit = [] if made.is_cpu else ["Needs the NVIDIA Container Toolkit."]
    return "\n".join([*toolkit, *exported, "docker compose up --wait"])


def _ports(made: Deployment) -> Commented:
    """Where clients reach it: `server.host` if others reach that address, else loopback."""
    port, address = made.plan.port, "127.0.0.1"
    with contextlib.suppress(ValueError):  # a name, which compose does not take
        found = ipaddress.ip_address(made.host)
        if not found.is_loopback:
            address = f"[{found}]" if found.version == 6 else str(found)
    is_local = address == "127.0.0.1"
    note = _LOOPBACK if is_local else "the address that the profile's `server.host` names"
    return Commented(note, [f"{address}:{port}:{port}"])


def _gpus(made: Deployment) -> Service:
    """The accelerators: those that the profile names, or so many as it needs."""
    if made.is_cpu:
        return {}
    note = "of this host; `hardware.devices` names certain ones"
    count = {"count": Commented(note, made.ranks_per_node)}
    named = {"device_ids": [str(device) for device in made.devices]}
    device = {"driver": "nvidia", **(named if made.devices else count), "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [device]}}}}


def _server(made: Deployment, folder: str) -> Service:
    values = environment(made, cache=_cache(made))
    for (
        name,
        value,
    ) in made.plan.env.items():  # by reference to variables of the shell that starts it
        if isinstance(value, FromEnv):
            values[name] = Reference(f"${{{value.name}:?the server's API key}}")
    if not made.may_be_offline:
        values["HF_TOKEN"] = _TOKEN
    note = "models of the Hub, and what vLLM, torch and Triton compile"
    volumes: list[Any] = [Commented(note, f"home:{made.image.home}")]
    for mount in made.mounts:
        paths = {"source": seen_from(mount.path, folder), "target": f"{MODELS}/{mount.name}"}
        bind = {"create_host_path": False}
        volumes.append({"type": "bind", **paths, "read_only": True, "bind": bind})
    where = {"working_dir": Commented("paths in the command are seen from here", MODELS)}
    staged = {"depends_on": {"stage": {"condition": "service_completed_successfully"}}}
    return {
        "image": made.image.commented,
        "labels": {
            f"specserve.{key.rpartition('/')[2]}": value for key, value in made.labels.items()
        },
        "entrypoint": list(made.plan.argv[:2]),
        "command": list(made.plan.argv[2:]),
        **(where if made.mounts else {}),
        "environment": values,
        "ports": _ports(made),
        "volumes": volumes,
        "healthcheck": {
            "test": ["CMD", *question(made, port=made.plan.port)],
            "start_period": Commented(made.start_limit_from, f"{made.start_limit_s}s"),
            "start_interval": "5s",
            "interval": "15s",
            "timeout": "10s",
            "retries": 6,
        },
        "stop_grace_period": f"{made.grace_s}s",
        "restart": "unless-stopped",
        **_gpus(made),
        "shm_size": Commented("NCCL and vLLM's message queues", f"{made.shm_gib}gb"),
        **_confined(made),
        **(staged if made.downloads else {}),
    }


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


def _literal(value: Any) -> Any:
    """The value with its texts such that Compose replaces `$NAME` in a `Reference` alone."""
    if isinstance(value, Commented):
        return Commented(value.comment, _literal(value.value))
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(item) for item in value]
    is_text = isinstance(value, str) and not isinstance(value, Reference)
    return value.replace("$", "$$") if is_text else value


def sglang(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return launch.sh, which serves the profile with SGLang.

    Raises UsageError with every setting that has no counterpart.
    """
    profile = made.profile
    bare = launch_sglang(replace(profile, server=replace(profile.server, host=made.host)))
    notes = "".join(f"\n- {note}" for note in bare.notes)
    warning = "specserve has never started SGLang: measure before you rely on it."
    beside = f"\nRun it in the folder that holds {made.mounted}." if made.mounts else ""
    head = rendered_head(made, f"SGLang {VERSION}", bare.fingerprint)
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in bare.env.items())
    said = comment(f"{head}{notes}\n{warning}{beside}")
    command = shell(replace(bare, env={}))
    return (Artifact("launch.sh", f"#!/bin/sh\n{said}set -eu\n{exported}exec {command}"),)
