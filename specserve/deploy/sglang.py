"""SGLang: the same profile as the command that serves it there, and as a container."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from specserve.deploy.compose import literal, seen_from
from specserve.deploy.deployment import MODELS, Artifact, Deployment, Image, official, question
from specserve.profile.writer import Commented, comment, yaml_text
from specserve.sglang.launch import SglangLaunch, command, launch_sglang
from specserve.sglang.mapping import VERSION

TARGET = "sglang"
_REPOSITORY = "lmsysorg/sglang"
"""Source: `docker pull lmsysorg/sglang:latest` in the description of the wheel, METADATA 0.5.23."""
_HOME = "/root"
"""The image runs as root, and its Hub cache lies there. Source: docker/compose.yaml of sgl-project/sglang."""


def sglang_image(made: Deployment) -> Image:
    """Returns the official image of this SGLang, or the one that stands in a deployment for vLLM's official one."""
    is_vllms = made.image == official(made.plan.vllm, platform=made.plan.platform)
    return Image(f"{_REPOSITORY}:v{VERSION}" if is_vllms else made.image.reference, uid=0, gid=0, home=_HOME)


def sglang(made: Deployment, folder: str) -> tuple[Artifact, ...]:
    """Returns launch.sh and compose.yaml. `folder`: the output folder, for relative paths.

    Raises UsageError that names every setting of the profile without a counterpart.
    """
    profile = made.profile
    bare = launch_sglang(replace(profile, server=replace(profile.server, host=made.host)))
    head = _head(made, bare)
    script = f"#!/bin/sh\n{comment(head)}set -eu\n{_beside_models(made)}{_exec(bare)}"
    content = {
        "name": made.name,
        "services": {"sglang": _service(made, launch_sglang(profile), folder=folder)},
        "volumes": {"home": {}},
    }
    start = "docker compose up --wait          (first: export HF_TOKEN=… for gated models)"
    return (
        Artifact("launch.sh", script),
        Artifact("compose.yaml", yaml_text(content, head=f"{head}\n\n{start}"), alone=False),
    )


def _head(made: Deployment, launch: SglangLaunch) -> str:
    lines = [
        f"Rendered by `specserve render --to {TARGET}` from `{made.profile.name}`",
        f"for SGLang {VERSION}, fingerprint {launch.fingerprint[:16]}.",
        "Change the profile and render again. specserve has never started SGLang: measure before you rely on it.",
        *(f"- {note}" for note in launch.notes),
    ]
    return "\n".join(lines)


def _beside_models(made: Deployment) -> str:
    names = ", ".join(f"`{mount.name}`" for mount in made.mounts)
    return comment(f"Run it in the folder that holds {names}") if names else ""


def _exec(launch: SglangLaunch) -> str:
    """The variables, and the command in place of the shell."""
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in launch.env.items())
    return f"{exported}exec {command(replace(launch, env={}))}"


def _service(made: Deployment, launch: SglangLaunch, *, folder: str) -> dict[str, Any]:
    port = made.plan.port
    own = {"HF_TOKEN": "${HF_TOKEN:-}"}
    which: dict[str, Any] = {"device_ids": [str(device) for device in made.devices]}
    if not made.devices:
        note = "of this host; `hardware.devices` names certain ones"
        which = {"count": Commented(note, made.ranks_per_node)}
    device = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
    volumes: list[Any] = [Commented("models of the Hub, and what SGLang compiles", f"home:{_HOME}/.cache")]
    for mount in made.mounts:
        paths = {"source": literal(seen_from(mount.path, folder)), "target": f"{MODELS}/{mount.name}"}
        volumes.append({"type": "bind", **paths, "read_only": True, "bind": {"create_host_path": False}})
    labels = {**made.labels, "app.kubernetes.io/version": VERSION}
    return {
        "image": sglang_image(made).commented,
        "labels": {f"specserve.{key.rpartition('/')[2]}": value for key, value in labels.items()},
        "entrypoint": list(launch.argv[:2]),
        "command": [literal(word) for word in launch.argv[2:]],
        **(
            {"working_dir": Commented("paths in the command are seen from here", MODELS)}
            if made.mounts
            else {}
        ),
        "environment": {**{name: literal(value) for name, value in launch.env.items()}, **own},
        "ports": Commented(
            "this host only; a proxy with TLS in front of it may be reached by others",
            [f"127.0.0.1:{port}:{port}"],
        ),
        "volumes": volumes,
        "ipc": Commented("as SGLang's own compose file has it", "host"),
        "security_opt": ["no-new-privileges:true"],
        "init": True,
        "healthcheck": {
            "test": ["CMD", *question(made, port=port)],
            "start_period": Commented(
                f"{made.start_limit_from}; a download takes longer", f"{made.start_limit_s}s"
            ),
            "start_interval": "5s",
            "interval": "15s",
            "timeout": "10s",
            "retries": 6,
        },
        "stop_grace_period": Commented("server.shutdown_timeout_s and 30 s more", f"{made.grace_s}s"),
        "restart": "unless-stopped",
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }
