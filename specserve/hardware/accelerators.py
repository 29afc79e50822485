"""Accelerators: those that are known by name, and the GPUs of this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from specserve.errors import UsageError, gib, quoted

CPU = "cpu"
_MACHINE = r"(?s)(?:(?:(\d{1,6})x)?(\d{1,6})x)?([A-Za-z].*)"
_SAME_SIZE = 0.06
"""NVML's total and the driver's usable total differ by less; the sizes of one product by more."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of accelerator by its name, or one GPU of this machine."""

    name: str
    """`H100-80GB`; `cpu` for the machine's own memory."""
    total_bytes: int
    """What the driver reports as total, not the nameplate."""
    compute_capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    bandwidth_bytes_per_s: float | None = None
    """Of its memory, the datasheet's peak; None: not known. Only for estimates, as is the next."""
    flops: float | None = None
    """Dense 16-bit matrix products, a second, the datasheet's peak."""
    devices: tuple[str, ...] = ()
    """Words of the product name that the driver reports."""
    index: int | None = None
    """Of a GPU of this machine, as what follows."""
    uuid: str = ""
    free_bytes: int | None = None
    holders: tuple[str, ...] = ()
    """Who holds its memory: `pid 4711`."""


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

    def __str__(self) -> str:
        if self.is_cpu:
            return f"{gib(self.accelerator.total_bytes)} of memory"
        each = f"{self.count} x {self.accelerator.name}"
        return f"{self.nodes} nodes with {each} each" if self.nodes > 1 else each

    @property
    def is_cpu(self) -> bool:
        """Whether the engine is to run in the machine's own memory."""
        return self.accelerator.name == CPU


@lru_cache
def catalogue() -> tuple[Accelerator, ...]:
    """Every accelerator with a name; `cpu`, which depends on the machine, is not among them."""
    text = Path(__file__).with_name("accelerators.json").read_text(encoding="utf-8")
    return tuple(
        Accelerator(
            name,
            int(row["gib"] * 2**30),
            tuple(row["capability"]) if "capability" in row else None,
            row.get("vendor", "nvidia"),
            bandwidth_bytes_per_s=row["bandwidth_gb_s"] * 1e9 if "bandwidth_gb_s" in row else None,
            flops=row["tflops"] * 1e12 if "tflops" in row else None,
            devices=tuple(row["device"]),
        )
        for name, row in json.loads(text)["accelerators"].items()
    )


def accelerator(name: str) -> Accelerator:
    """The one of a name, whatever its case; `cpu`: this machine's memory. Raises UsageError."""
    wanted = name.strip().lower()
    if wanted == CPU:
        return this_cpu().accelerator
    for known in catalogue():
        if known.name.lower() == wanted:
            return known
    hint = "`specserve doctor --accelerators` lists the names"
    raise UsageError(f"there is no accelerator named {quoted(name)}", hint=hint)


def assume(text: str, *, basis: Literal["assumed", "profile"] = "assumed") -> Machine:
    """The machine of `[NODESx]COUNTxNAME`, such as `2x8xH200-141GB` or `cpu`. Raises UsageError."""
    match = re.fullmatch(_MACHINE, text.strip())
    nodes, count = (int(match[1] or 1), int(match[2] or 1)) if match else (0, 0)
    if not match or not (nodes and count):
        hint = "write it like `4xH100-80GB`, or `2x8xH100-80GB` for two nodes"
        raise UsageError(f"{quoted(text)} is not a valid machine", hint=hint)
    return Machine(accelerator(match[3]), count, nodes, basis)


def this_cpu(*, root: Path = Path("/")) -> Machine:
    """This machine's own memory, or what its control group may use, and what is free of it now."""
    import psutil

    from specserve.hardware.host import memory_limits

    memory = psutil.virtual_memory()
    capacity, free = int(memory.total), int(memory.available)
    for limit, used in memory_limits(root):
        capacity, free = min(capacity, limit), min(free, limit - used)
    left = (max(0, min(free, capacity)),)
    return Machine(Accelerator(CPU, capacity, None, CPU), 1, basis="found", free_bytes=left)


def find(*, devices: Sequence[int | str] | None = None) -> Machine | None:
    """The GPUs that a launch here would see: `devices`, else CUDA_VISIBLE_DEVICES, else all.

    None: there is none. Of several kinds, the one with the least memory stands for all: vLLM
    gives every rank the same share.
    """
    found = selected(gpus(), devices=devices, environ=os.environ)
    if not found:
        return None
    free = tuple(gpu.free_bytes or 0 for gpu in found)
    return Machine(min(found, key=lambda gpu: gpu.total_bytes), len(found), 1, "found", free)


def selected(
    found: Sequence[Accelerator],
    *,
    devices: Sequence[int | str] | None,
    environ: Mapping[str, str],
) -> list[Accelerator]:
    """The GPUs that CUDA shows, in its order: up to the first entry that names none."""
    if devices is None:
        text = environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return list(found)
        devices = [part.strip() for part in text.split(",")]
    chosen: list[Accelerator] = []
    for device in map(str, devices):
        gpu = next((gpu for gpu in found if device in (str(gpu.index), gpu.uuid)), None)
        if gpu is None:
            break
        chosen.append(gpu)
    return chosen


def gpus() -> list[Accelerator]:
    """Every NVIDIA GPU of this machine; none without a driver."""
    import pynvml

    found = []
    with suppress(pynvml.NVMLError):  # no driver, or one that does not answer
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU that fell off the bus
                found.append(_gpu(pynvml, index))
        pynvml.nvmlShutdown()
    return found


def _gpu(nvml: Any, index: int) -> Accelerator:
    """One GPU: what the catalogue has of its kind, where it knows it, and what is its own."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = str(nvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA ")
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    holders = []
    with suppress(nvml.NVMLError):  # a container may not see any
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        holders = [f"pid {process.pid}" for process in running]
    return replace(
        known_as(name, int(memory.total)) or Accelerator(name, int(memory.total), capability),
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        free_bytes=int(memory.free),
        holders=tuple(holders),
    )


def known_as(product: str, total_bytes: int) -> Accelerator | None:
    """What the catalogue calls a product of NVML with so much memory."""
    words = f" {product.replace('-', ' ')} "
    matches = [
        (len(device), known)
        for known in catalogue()
        for device in known.devices
        if f" {device} " in words and abs(total_bytes / known.total_bytes - 1) < _SAME_SIZE
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None
