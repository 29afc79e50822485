"""Accelerators: those of this machine, and the catalogue of names. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of accelerator."""

    name: str
    """`H100-80GB`; `cpu` for the machine's own memory."""
    total_bytes: int
    """What the driver reports as total, not the nameplate."""
    compute_capability: tuple[int, int] | None = None
    vendor: str = "nvidia"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a launch has: `count` accelerators of one kind on each of `nodes`."""

    accelerator: Accelerator
    count: int
    nodes: int = 1
    basis: Literal["found", "assumed", "profile"] = "profile"
    """Seen on this machine, told by `--assume`, or written in the profile's `hardware`."""
    free_bytes: tuple[int, ...] | None = None
    """Free memory per accelerator, where they were found."""
    holders: tuple[str, ...] = ()
    """Who holds memory: `GPU 0: 12.3 GiB by pid 4711 (python)`."""
