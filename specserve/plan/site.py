"""What else of this machine a launch depends on: port, shared memory, cache, extras. Judges nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from specserve.plan.host import Cache, Host
from specserve.plan.launchplan import LaunchPlan

_SHM = Path("/dev/shm")  # noqa: S108  # looked at, not written to


def seen_from(host: Host, plan: LaunchPlan, *, environ: Mapping[str, str] = os.environ) -> Host:
    """The host with what this launch would meet on it. `environ` is the environment that the server inherits."""
    return replace(
        host,
        taken_ports=_taken(plan),
        shm_bytes=_size(_SHM),
        cache=_cache(
            {**environ, **{name: value for name, value in plan.env.items() if isinstance(value, str)}}
        ),
        arctic_inference=_arctic_inference() if _is_suffix(plan) else "?",
    )


def _taken(plan: LaunchPlan) -> Mapping[int, str]:
    if not plan.port:
        return {}
    from specserve.hardware.host import holder

    with suppress(OSError):  # an address that is not of this host
        found = holder(plan.host, plan.port)
        return {plan.port: str(found)} if found else {}
    return {}


def _size(folder: Path) -> int | None:
    with suppress(OSError):
        return shutil.disk_usage(folder).total
    return None


def _cache(environ: Mapping[str, str]) -> Cache | None:
    """Source: huggingface_hub/constants.py 1.0, HF_HUB_CACHE."""
    home = environ.get("HF_HOME") or str(Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    folder = Path(environ.get("HF_HUB_CACHE") or str(Path(home) / "hub")).expanduser()
    with suppress(OSError, RuntimeError):
        there = next(part for part in (folder, *folder.parents) if part.exists())
        return Cache(str(folder), shutil.disk_usage(there).free, os.access(there, os.W_OK))
    return None


def _is_suffix(plan: LaunchPlan) -> bool:
    return (plan.speculation or {}).get("method") == "suffix"


def _arctic_inference() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("arctic-inference")
    except metadata.PackageNotFoundError:
        return None
