"""SGLang: the same profile by another engine, as a script. Starts nothing."""

from __future__ import annotations

import shlex
from dataclasses import replace

from specserve.deploy.deployment import Artifact, Deployment
from specserve.plan.launchplan import shell
from specserve.profile.writer import comment
from specserve.sglang.options import VERSION, launch_sglang


def sglang(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """Return launch.sh. Raises UsageError with every setting that has no counterpart."""
    profile = made.profile
    bare = launch_sglang(replace(profile, server=replace(profile.server, host=made.host)))
    lines = [made.head_for(f"SGLang {VERSION}", bare.fingerprint)]
    lines += [f"- {note}" for note in bare.notes]
    lines.append("specserve has never started SGLang: measure before you rely on it.")
    if made.mounts:
        lines.append(f"Run it in the folder that holds {made.mounted}.")
    exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in bare.env.items())
    head = comment("\n".join(lines))
    command = f"set -eu\n{exported}exec {shell(bare.argv, {})}"
    return (Artifact("launch.sh", f"#!/bin/sh\n{head}{command}"),)
