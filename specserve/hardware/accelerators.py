"""Accelerators: those that are known by name, and the GPUs of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

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
    """Of its memory, the datasheet's peak; None: not known. Only for estimates, as is the next."""
    flops: float | None = None
    """Dense 16-bit matrix products, a second, the datasheet's peak."""
    devices: tuple[str, ...] = ()
    """Words of the product name that the driver reports."""
    seen: str = ""
    """Where the memory figure was read."""
    rates: str | None = None
    """Where bandwidth and FLOP/s were read."""


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
    """NUMA nodes of a CPU's memory: the engine's `gpu_memory_utilization` is a share of one."""

    @property
    def is_cpu(self) -> bool:
        """Whether the engine is to run in the machine's own memory."""
        return self.accelerator.name == CPU

    def least_free_bytes(self, *, ranks: int) -> int | None:
        """What is free on the fullest of those that so many ranks take: the first, as in CUDA."""
        return min(self.free_bytes[:ranks]) if self.free_bytes else None


@lru_cache
def catalogue() -> tuple[Accelerator, ...]:
    """Every accelerator with a name; `cpu`, which depends on the machine, is not among them."""
    import tomllib

    text = Path(__file__).with_name("accelerators.toml").read_text(encoding="utf-8")
    return tuple(
        Accelerator(
            name,
            int(row["gib"] * _GIB),
            tuple(row["capability"]) if "capability" in row else None,
            row.get("vendor", "nvidia"),
            bandwidth_bytes_per_s=row["bandwidth_gb_s"] * 1e9 if "bandwidth_gb_s" in row else None,
            flops=row["tflops"] * 1e12 if "tflops" in row else None,
            devices=tuple(row["device"]),
            seen=row["seen"],
            rates=row.get("rates"),
        )
        for name, row in tomllib.loads(text).items()
    )


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
    raise UsageError(f"there is no accelerator named `{_shown(name)}`", hint=_nearest(wanted))


def assume(text: str, *, basis: Literal["assumed", "profile"] = "assumed") -> Machine:
    """The machine of `[NODESx]COUNTxNAME`, such as `4xH100-80GB`, `2x8xH200-141GB` or `cpu`.

    Raises UsageError for another form, a zero, and an unknown name.
    """
    match = _MACHINE.fullmatch(text.strip())
    hint = "write it like `4xH100-80GB`, or `2x8xH100-80GB` for two nodes"
    if not match:
        raise UsageError(f"`{_shown(text)}` is not a valid machine", hint=hint)
    nodes, count = int(match[1] or 1), int(match[2] or 1)
    if not (nodes and count):
        raise UsageError(f"`{_shown(text)}` has no accelerator", hint=hint)
    kind = accelerator(match[3])
    here = this_cpu().memory_nodes if kind.name == CPU else 1
    return Machine(kind, count, nodes, basis, memory_nodes=here)


def this_cpu() -> Machine:
    """This machine's own memory, which the CPU engine uses: its capacity, and what is free now."""
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
    close = same or [
        names[plain] for plain in get_close_matches(wanted[:_LONGEST_NAME], names, n=1)
    ]
    if not close:
        return "`specserve doctor --accelerators` lists the names"
    return f"did you mean {' or '.join(f'`{name}`' for name in close)}?"


def _shown(text: str) -> str:
    short = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    return "".join(char if char.isprintable() else "�" for char in short)


_SAME_SIZE = 0.06
"""NVML's total and the driver's usable total differ by less; the sizes of one product by more."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML reports it."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    holders: tuple[str, ...] = ()
    """`12.3 GiB by pid 4711 (python)`."""


def find(
    *, devices: Sequence[int | str] | None = None, environ: Mapping[str, str] = os.environ
) -> Machine | None:
    """The GPUs that a launch here would see: `devices`, else CUDA_VISIBLE_DEVICES, else all.

    None: there is none. Of several kinds, the one with the least memory stands for all: vLLM
    gives every rank the same share.
    """
    return machine(selected(gpus(), devices=devices, environ=environ))


def machine(found: Sequence[Gpu]) -> Machine | None:
    """These GPUs as one machine."""
    if not found:
        return None
    least = min(found, key=lambda gpu: gpu.total_bytes)
    return Machine(
        kind(least),
        len(found),
        basis="found",
        free_bytes=tuple(gpu.free_bytes for gpu in found),
        holders=tuple(f"GPU {gpu.index}: {holder}" for gpu in found for holder in gpu.holders),
    )


def kind(gpu: Gpu) -> Accelerator:
    """What the catalogue calls this GPU, with the driver's usable memory; else NVML's figures."""
    words = gpu.name.replace("-", " ").split()
    matches = [
        (len(device), known)
        for known in catalogue()
        for device in known.devices
        if _contains(words, device.split())
        and abs(gpu.total_bytes / known.total_bytes - 1) < _SAME_SIZE
    ]
    longest = max(matches, key=lambda match: match[0], default=None)
    return longest[1] if longest else Accelerator(gpu.name, gpu.total_bytes, gpu.compute_capability)


def _contains(words: list[str], part: list[str]) -> bool:
    return any(words[at : at + len(part)] == part for at in range(len(words)))


def selected(
    found: Sequence[Gpu], *, devices: Sequence[int | str] | None, environ: Mapping[str, str]
) -> list[Gpu]:
    """The GPUs that CUDA shows, in its order: up to the first entry that names none."""
    if devices is None:
        text = environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return list(found)
        devices = [part.strip() for part in text.split(",")]
    chosen: list[Gpu] = []
    for device in devices:
        gpu = next((gpu for gpu in found if _named(gpu, str(device))), None)
        if gpu is None:
            break
        chosen.append(gpu)
    return chosen


def _named(gpu: Gpu, text: str) -> bool:
    return str(gpu.index) == text or (text.startswith("GPU-") and gpu.uuid.startswith(text))


def gpus() -> list[Gpu]:
    """Every NVIDIA GPU of this machine; none without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, a driver that does not answer
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU that fell off the bus
                found.append(_gpu(pynvml, index))
        return found
    except pynvml.NVMLError:
        return []
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA "),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        holders=_holders(nvml, handle),
    )


def _holders(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Who holds memory of one GPU, the most first; a container may not see any."""
    with suppress(nvml.NVMLError):
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used = sorted(processes, key=lambda process: -(process.usedGpuMemory or 0))
        return tuple(_holder(process.pid, process.usedGpuMemory) for process in used)
    return ()


def _holder(pid: int, used_bytes: int | None) -> str:
    import psutil

    name = "not seen from here"
    with suppress(psutil.Error):
        name = psutil.Process(pid).name()
    amount = f"{used_bytes / _GIB:.1f} GiB" if used_bytes else "memory"
    return f"{amount} by pid {pid} ({name})"
