"""How many servers run at the same time on this machine, in which order, and what it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specserve.measure.bench.variants import Variant


class Placement(NamedTuple):
    """Whether all servers run at the same time, and why."""

    together: bool
    why: str


def placement(variants: Sequence[Variant]) -> Placement:
    """Return whether the servers run side by side: on a GPU never, which each takes whole."""
    from specserve.hardware.host import host_memory

    started = [variant for variant in variants if variant.plan is not None]
    if len(started) < 2:
        return Placement(True, "one server is started" if started else "all servers run already")
    if started[0].plan is not None and started[0].plan.platform != "cpu":
        return Placement(False, "each server takes its GPUs whole")
    free = host_memory().free_bytes * 0.9
    needs = [variant.memory_bytes for variant in started if variant.memory_bytes is not None]
    if len(needs) < len(started):
        return Placement(False, "how much memory a server takes is not known")
    all_of_them = f"{sum(needs) / 2**30:.1f} GiB for all of them (estimated)"
    return Placement(sum(needs) <= free, f"{all_of_them}, {free / 2**30:.1f} GiB are free")


@dataclass(frozen=True, slots=True)
class Session:
    """Variants that run at the same time, so that their blocks take turns."""

    launch: int
    """Number of the launch; blocks of two variants are compared if they have the same one."""
    variants: tuple[str, ...]


def sessions(variants: Sequence[Variant], *, launches: int, together: bool) -> tuple[Session, ...]:
    """Return the launches in order: together, or each alone in the order A B B A.

    The order is reversed from launch to launch, so that a steady drift of the machine cancels.
    """
    names = tuple(variant.name for variant in variants)
    if together:
        return tuple(Session(launch, names) for launch in range(launches))
    return tuple(
        Session(launch, (name,))
        for launch in range(launches)
        for name in (reversed(names) if launch % 2 else names)
    )


def versions() -> dict[str, str]:
    """Return the versions of specserve and of the vLLM that is installed here."""
    from specserve import __version__
    from specserve.vllm.versions import installed

    here = installed()
    return {"specserve": __version__} | ({"vllm": here.version} if here is not None else {})


def host(*, platform_of_variants: str | None) -> dict[str, str]:
    """Return the accelerators that the variants use, and the cores beside them."""
    from specserve.hardware.accelerators import gpus, kind, selected

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    found = {"cores": str(cores)}
    if platform_of_variants == "cpu":
        return found | {"accelerator": "cpu"}
    here = selected(gpus(), devices=None, environ=os.environ) if platform_of_variants else []
    return found | ({"accelerator": f"{len(here)}x{kind(here[0]).name}"} if here else {})
