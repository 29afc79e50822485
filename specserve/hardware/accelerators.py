"""Accelerators: their types, the catalogue of names, and machines described by a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from specserve.errors import UsageError

CPU = "cpu"
_GIB = 2**30
_MACHINE = re.compile(r"(?:(?:(\d{1,6})x)?(\d{1,6})x)?([A-Za-z].*)", re.S)
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of accelerator."""

    name: str
    """`H100-80GB`; `cpu` for the machine's own memory."""
    total_bytes: int
    """What the driver reports as total, not the nameplate."""
    compute_capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    bandwidth_bytes_per_s: float | None = None
    """Of its memory, the datasheet's peak; None if it is not known. Only for estimates, as is the next."""
    flops: float | None = None
    """Dense 16-bit matrix products, a second, the datasheet's peak."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a launch has: `count` accelerators of one kind on each of `nodes`."""

    accelerator: Accelerator
    count: int
    nodes: int = 1
    basis: Literal["found", "assumed", "profile"] = "profile"
    """Seen on this machine, given by `--assume`, or written in the profile's `hardware`."""
    free_bytes: tuple[int, ...] | None = None
    """Free memory per accelerator, if they were found."""
    holders: tuple[str, ...] = ()
    """Who holds memory: `GPU 0: 12.3 GiB by pid 4711 (python)`."""
    memory_nodes: int = 1
    """NUMA nodes that share the memory of a CPU: the engine's `gpu_memory_utilization` is a share of one of them."""

    @property
    def is_cpu(self) -> bool:
        """Whether the engine is to run in the machine's own memory."""
        return self.accelerator.name == CPU

    def least_free_bytes(self, *, ranks: int) -> int | None:
        """What is free on the fullest of the accelerators that so many ranks take: the first ones, as CUDA does."""
        return min(self.free_bytes[:ranks]) if self.free_bytes else None


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One name of the catalogue, with what it rests on."""

    accelerator: Accelerator
    devices: tuple[str, ...]
    """Words of the product name that the driver reports."""
    seen: str
    """Where the memory figure was read."""
    rates: str | None = None
    """Where bandwidth and FLOP/s were read."""


@lru_cache
def entries() -> tuple[CatalogueEntry, ...]:
    """The catalogue with its sources, in the order of the file."""
    import tomllib

    text = Path(__file__).with_name("accelerators.toml").read_text(encoding="utf-8")
    found = []
    for name, row in tomllib.loads(text).items():
        major, minor = row.get("capability", (0, 0))
        capability = (int(major), int(minor)) if major else None
        total = int(row["gib"] * _GIB)
        bandwidth, flops = row.get("bandwidth_gb_s"), row.get("tflops")
        accelerator = Accelerator(
            name,
            total,
            capability,
            row.get("vendor", "nvidia"),
            bandwidth_bytes_per_s=bandwidth * 1e9 if bandwidth else None,
            flops=flops * 1e12 if flops else None,
        )
        found.append(CatalogueEntry(accelerator, tuple(row["device"]), row["seen"], row.get("rates")))
    return tuple(found)


def catalogue() -> tuple[Accelerator, ...]:
    """Every accelerator with a name; `cpu`, which depends on the machine, is not among them."""
    return tuple(entry.accelerator for entry in entries())


def accelerator(name: str) -> Accelerator:
    """The accelerator of a name, whatever its case; `cpu`: the memory of this machine.

    Raises UsageError for an unknown name, with the nearest known one.
    """
    wanted = _plain(name)
    if wanted == CPU:
        return this_cpu().accelerator
    for known in catalogue():
        if _plain(known.name) == wanted:
            return known
    raise UsageError(f"no accelerator is called `{_shown(name)}`", hint=_nearest(wanted))


def assume(text: str, *, basis: Literal["assumed", "profile"] = "assumed") -> Machine:
    """The machine of `[NODESx]COUNTxNAME`, such as `4xH100-80GB`, `2x8xH200-141GB` or `cpu`.

    Raises UsageError for another form, a zero, and an unknown name.
    """
    match = _MACHINE.fullmatch(text.strip())
    hint = "write it like `4xH100-80GB`, or `2x8xH100-80GB` for two nodes"
    if not match:
        raise UsageError(f"`{_shown(text)}` names no machine", hint=hint)
    nodes, count = int(match[1] or 1), int(match[2] or 1)
    if not (nodes and count):
        raise UsageError(f"`{_shown(text)}` has no accelerator", hint=hint)
    kind = accelerator(match[3])
    here = this_cpu().memory_nodes if kind.name == CPU else 1
    return Machine(kind, count, nodes, basis, memory_nodes=here)


def this_cpu() -> Machine:
    """This machine's own memory, which the CPU engine uses: its capacity, and what is free of it now."""
    from specserve.hardware.host import host_memory

    memory = host_memory()
    return Machine(
        Accelerator(CPU, memory.capacity_bytes, None, CPU),
        1,
        basis="found",
        free_bytes=(memory.free_bytes,),
        memory_nodes=memory.nodes,
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip()).lower()


def _nearest(wanted: str) -> str:
    from difflib import get_close_matches

    names = {_plain(known.name): known.name for known in catalogue()} | {CPU: CPU}
    same = [name for plain, name in names.items() if plain.startswith(wanted + "-")]
    close = same or [names[plain] for plain in get_close_matches(wanted[:_LONGEST_NAME], names, n=1)]
    if not close:
        return "`specserve gpus` lists the names"
    return f"did you mean {' or '.join(f'`{name}`' for name in close)}?"


def _shown(text: str) -> str:
    short = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    return "".join(char if char.isprintable() else "�" for char in short)
