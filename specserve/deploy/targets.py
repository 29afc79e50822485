"""The targets by name, and rendered files on disk: which are stale, which are somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specserve.deploy.compose import compose
from specserve.deploy.deployment import Artifact, Deployment
from specserve.deploy.kubernetes import kubernetes
from specserve.deploy.monitoring import monitoring
from specserve.deploy.ray import ray
from specserve.deploy.systemd import systemd
from specserve.errors import FactError

TARGETS: Mapping[str, Callable[[Deployment, str], tuple[Artifact, ...]]] = {
    "compose": compose,
    "kubernetes": lambda made, _folder: kubernetes(made),
    "systemd": lambda made, _folder: systemd(made),
    "ray": lambda made, _folder: ray(made),
    "monitoring": lambda made, _folder: monitoring(made),
}


def render(target: str, made: Deployment, *, folder: str) -> tuple[Artifact, ...]:
    """The files of one of TARGETS. `folder`: absolute, where they are to lie. Raises UsageError."""
    return TARGETS[target](replace(made, target=target), folder)


FileState = Literal["missing", "stale", "left over"]
_MARK = "Rendered by `specserve render --to {target}` from "


def stale(artifacts: Iterable[Artifact], folder: Path, *, target: str) -> list[tuple[str, FileState]]:
    """Files that are not as they would be rendered now, by path; and those of an earlier rendering for `target`."""
    wanted = {one.path: one.text for one in artifacts}
    found: list[tuple[str, FileState]] = []
    for path, text in wanted.items():
        there = _read(folder / path)
        if there != text:
            found.append((path, "missing" if there is None else "stale"))
    mark = _MARK.format(target=target)
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        path = file.relative_to(folder).as_posix()
        if (
            path not in wanted
            and file.suffix in (".yaml", ".yml", ".service")
            and mark in (_read(file) or "")
        ):
            found.append((path, "left over"))
    return found


def foreign(artifacts: Iterable[Artifact], folder: Path) -> list[str]:
    """The paths at which something lies that no rendering wrote."""
    return [
        one.path
        for one in artifacts
        if (there := _read(folder / one.path)) is not None and "specserve" not in there
    ]


def put(artifacts: Iterable[Artifact], folder: Path) -> int:
    """Write what is not there as it should be; says how many. Raises FactError where that cannot be."""
    changed = 0
    for one in artifacts:
        file = folder / one.path
        if _read(file) == one.text:
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(one.text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise FactError(f"cannot write `{file}`: {error.strerror}") from error
        changed += 1
    return changed


def _read(file: Path) -> str | None:
    """The text of a file; None where there is none, empty for what is no text."""
    try:
        return file.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError):
        return ""
