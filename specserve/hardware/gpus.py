"""The GPUs of this machine, by NVML: kind, memory, who holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from specserve.hardware.accelerators import Accelerator, CatalogueEntry, Machine, entries

_GIB = 2**30
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
    """The GPUs that a launch here would see: `devices`, else CUDA_VISIBLE_DEVICES, else all. None: there is none.

    Of several kinds, the one with the least memory stands for all: vLLM gives every rank the same share.
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
    """What the catalogue calls this GPU, with the memory that the driver gives out; else NVML's own figures."""
    match = max(
        (entry for entry in entries() if _is(entry, gpu)),
        key=lambda entry: max(len(word) for word in entry.devices),
        default=None,
    )
    if match:
        return match.accelerator
    return Accelerator(gpu.name, gpu.total_bytes, gpu.compute_capability)


def _is(entry: CatalogueEntry, gpu: Gpu) -> bool:
    words = gpu.name.replace("-", " ").split()
    named = any(_contains(words, name.split()) for name in entry.devices)
    return named and abs(gpu.total_bytes / entry.accelerator.total_bytes - 1) < _SAME_SIZE


def _contains(words: list[str], part: list[str]) -> bool:
    return any(words[at : at + len(part)] == part for at in range(len(words)))


def selected(
    found: Sequence[Gpu], *, devices: Sequence[int | str] | None, environ: Mapping[str, str]
) -> list[Gpu]:
    """The GPUs that CUDA shows, in its order: up to the first entry that names none, as CUDA reads the list."""
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
