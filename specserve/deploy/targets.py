"""The targets by name, and rendered files on disk: which are stale, which are somebody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Literal

from specserve.deploy.compose import compose, sglang, sglang_image
from specserve.deploy.deployment import CORRUPTED_TEXT, Artifact, Canary, Deployment
from specserve.deploy.kubernetes import kubernetes
from specserve.deploy.monitoring import monitoring
from specserve.deploy.ray import ray
from specserve.deploy.systemd import systemd
from specserve.errors import FactError, UsageError
from specserve.files import read_start, write_named

TARGETS: Mapping[str, Callable[[Deployment, str], tuple[Artifact, ...]]] = {
    "compose": compose,
    "kubernetes": kubernetes,
    "systemd": systemd,
    "ray": ray,
    "sglang": sglang,
    "monitoring": monitoring,
}


def with_canary(made: Deployment, text: str, made_of: Callable[[str], Deployment]) -> Deployment:
    """Return the deployment with the alternative of `NAME=10%` beside it. Raises what `made_of` raises, UsageError."""
    match = re.fullmatch(r"(?P<name>.+)=(?P<percent>[0-9]{1,2})%", text)
    if match is None or not int(match["percent"]):
        raise UsageError(
            f"`--canary {text}` must be the name of an alternative and its share",
            hint="write it like `--canary NAME=10%`, with 1 to 99 %",
        )
    return replace(made, canary=Canary(match["name"], int(match["percent"]), made_of(match["name"])))


def render(target: str, made: Deployment, *, folder: str) -> tuple[Artifact, ...]:
    """Return the files of one of TARGETS. `folder`: absolute, where they are to lie. Raises UsageError."""
    if made.canary:
        _require_pools(made, target)
    canary = made.canary and replace(made.canary, made=replace(made.canary.made, target=target))
    return TARGETS[target](replace(made, target=target, canary=canary), folder)


def _require_pools(made: Deployment, target: str) -> None:
    """Raises UsageError if a canary cannot be written for a target."""
    if target == "monitoring":
        return
    if target not in ("compose", "kubernetes"):
        raise UsageError(f"`--canary` is for `--to kubernetes` and `--to compose`, not for `--to {target}`")
    if made.nodes > 1:
        raise UsageError(f"`--canary` is for servers on one node, but this profile needs {made.nodes}")
    if target == "compose" and made.scheme == "https":
        raise UsageError(
            "`--canary` puts a proxy in front of the servers, which must then speak plain HTTP",
            hint="leave `ssl_certfile` and `ssl_keyfile` to the proxy",
        )


FileState = Literal["missing", "stale", "left over"]


def stale(artifacts: Iterable[Artifact], folder: Path, *, target: str) -> list[tuple[str, FileState]]:
    """Returns files that are not as they would be rendered now, and those of an earlier rendering for `target`."""
    wanted = {one.path: one for one in artifacts}
    found: list[tuple[str, FileState]] = []
    for path, one in wanted.items():
        if not _is_written(one, folder):
            found.append((path, "stale" if os.path.lexists(folder / path) else "missing"))
    mark = f"Rendered by `specserve render --to {target}` from ".encode()
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        path = file.relative_to(folder).as_posix()
        may_be_ours = path not in wanted and file.suffix in ("", ".yaml", ".yml", ".service", ".sh")
        if may_be_ours and mark in read_start(file, _HEAD_BYTES):
            found.append((path, "left over"))
    return found


def put(artifacts: Sequence[Artifact], folder: Path) -> int:
    """Writes the files that differ and returns how many. Raises FactError if that fails.

    Raises UsageError, before it writes anything, if a link leads out of the folder, or if somebody else's file is in
    the way.
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


_HEAD_BYTES = 4096
"""In which every file of ours says so."""


def _is_written(one: Artifact, folder: Path) -> bool:
    """Whether the file is there as it would be written."""
    data = one.text.encode()
    return read_start(folder / one.path, len(data) + 1) == data


def caveats(made: Deployment, target: str) -> Iterator[str]:
    """What the files rest on that a profile, a lock or an option would fix, one line each."""
    if made.corrupts_text and target != "sglang":
        yield f"warning: {CORRUPTED_TEXT}"
    image = sglang_image(made) if target == "sglang" else made.image
    if target in ("compose", "kubernetes", "sglang") and not image.is_pinned:
        yield f"note: `{image.reference}` is a tag, which can move; `--image …@sha256:…` pins it"
    if target == "sglang":
        yield "note: specserve has never started SGLang, and checks its options by the source alone"
    canaries = made.canary.made.downloads if made.canary else ()
    unpinned = {one.model for one in (*made.downloads, *canaries) if not one.revision}
    if unpinned:
        models = "1 model is" if len(unpinned) == 1 else f"{len(unpinned)} models are"
        yield f"note: {models} not pinned, and the main branch can move; `specserve lock` pins the commits"
    if target in ("kubernetes", "ray") and not made.has_key:
        yield "note: no API key: anyone who can reach the Service can use the model; see `server.api_key_env`"
