"""The targets by name, and rendered files on disk: which are stale, which are somebody else's."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from specserve.deploy.compose import compose
from specserve.deploy.deployment import CORRUPTED_TEXT, Artifact, Canary, Deployment
from specserve.deploy.kubernetes import kubernetes
from specserve.deploy.monitoring import monitoring
from specserve.deploy.ray import ray
from specserve.deploy.systemd import systemd
from specserve.errors import FactError, UsageError
from specserve.files import read_start, write_named
from specserve.plan.launchplan import shell
from specserve.profile.writer import comment
from specserve.sglang.options import VERSION, launch_sglang


def _sglang(made: Deployment, _folder: str) -> tuple[Artifact, ...]:
    """launch.sh, for SGLang. Raises UsageError with every setting that has no counterpart."""
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


TARGETS: Mapping[str, Callable[[Deployment, str], tuple[Artifact, ...]]] = {
    "compose": compose,
    "kubernetes": kubernetes,
    "systemd": systemd,
    "ray": ray,
    "sglang": _sglang,
    "monitoring": monitoring,
}
_HEAD_BYTES = 4096
"""In which every file of ours says so."""


def with_canary(made: Deployment, text: str, made_of: Callable[[str], Deployment]) -> Deployment:
    """Return the deployment with the alternative of `NAME=10%` beside it. Raises UsageError."""
    match = re.fullmatch(r"(?P<name>.+)=(?P<percent>[1-9][0-9]?)%", text)
    if match is None:
        raise UsageError(
            f"`--canary {text}` must be the name of an alternative and its share",
            hint="write it like `--canary NAME=10%`, with 1 to 99 %",
        )
    name = match["name"]
    return replace(made, canary=Canary(name, int(match["percent"]), made_of(name)))


def render(target: str, made: Deployment, *, folder: str) -> tuple[Artifact, ...]:
    """Return the files of one of TARGETS, which are to lie in `folder`. Raises UsageError."""
    if made.canary and target not in ("kubernetes", "monitoring"):
        raise UsageError(
            f"`--canary` is for `--to kubernetes` and `--to monitoring`, not for `--to {target}`",
            hint="docs/how-to/canary.md says how two servers of one host share the requests",
        )
    if made.canary and target == "kubernetes" and made.nodes > 1:
        raise UsageError(f"`--canary` is for one node, but this profile needs {made.nodes}")
    canary = made.canary and replace(made.canary, made=replace(made.canary.made, target=target))
    return TARGETS[target](replace(made, target=target, canary=canary), folder)


def stale(artifacts: Iterable[Artifact], folder: Path) -> list[tuple[str, str]]:
    """Return the files that are not as they would be rendered now: `stale` or `missing`."""
    return [
        (one.path, "stale" if os.path.lexists(folder / one.path) else "missing")
        for one in artifacts
        if not _is_written(one, folder)
    ]


def put(artifacts: Sequence[Artifact], folder: Path) -> int:
    """Write the files that differ and return how many. Raises FactError if that fails.

    Raises UsageError, before it writes anything, if a link leads out of the folder, or if somebody
    else's file is in the way.
    """
    for one in artifacts:
        file = folder / one.path
        for above in [folder / part for part in PurePath(one.path).parents[:-1]]:
            if above.is_symlink():
                raise UsageError(f"`{above}` is a link to another folder", hint="remove the link")
        if os.path.lexists(file) and b"specserve" not in read_start(file, _HEAD_BYTES):
            hint = "name another folder, or delete the file"
            raise UsageError(f"`{file}` was not written by specserve", hint=hint)
    changed = [one for one in artifacts if not _is_written(one, folder)]
    for one in changed:
        file = folder / one.path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FactError(f"cannot write `{file}`: {error.strerror}") from error
        write_named(file, one.text)
    return len(changed)


def _is_written(one: Artifact, folder: Path) -> bool:
    """Whether the file is there as it would be written."""
    data = one.text.encode()
    return read_start(folder / one.path, len(data) + 1) == data


def caveats(made: Deployment, target: str) -> Iterator[str]:
    """What the files rest on that a profile, a lock or an option would fix, one line each."""
    if made.corrupts_text:
        yield f"warning: {CORRUPTED_TEXT}"
    if target in ("compose", "kubernetes") and "@sha256:" not in made.image.reference:
        yield f"note: `{made.image.reference}` can move; `--image …@sha256:…` pins it"
    if made.left_out:
        names = ", ".join(f"`{name}`" for name in made.left_out)
        yield f"note: {names} left out: the files have a volume for models and compiled code"
    canaries = made.canary.made.downloads if made.canary else ()
    unpinned = {one.model for one in (*made.downloads, *canaries) if not one.revision}
    if unpinned:
        models = "1 model is" if len(unpinned) == 1 else f"{len(unpinned)} models are"
        yield f"note: {models} not pinned; `specserve lock` pins the commits"
    if target in ("kubernetes", "ray") and not made.secrets:
        yield "note: no API key: whoever reaches the Service can use it; see `server.api_key_env`"
