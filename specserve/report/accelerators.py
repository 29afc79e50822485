"""What `specserve gpus` shows: the accelerators found here, then the names of the catalogue. Finds none itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specserve.facts.accelerators import Accelerator, Machine, catalogue
from specserve.facts.nvml import Gpu, kind
from specserve.report.columns import columns
from specserve.report.console import clean

_GIB = 2**30


def accelerators_text(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """Both tables for a person: usable memory, not the nameplate's."""
    lines = ["Found here"]
    for gpu in found:
        name = kind(gpu).name
        free = f"{gpu.free_bytes / _GIB:.1f} GiB free"
        lines.append(f"  {gpu.index}  {clean(name):<22} {_memory(kind(gpu))}  {free}  {clean(gpu.name)}")
        lines += [f"     {clean(holder)}" for holder in gpu.holders]
    if not found:
        lines.append("  no NVIDIA GPU")
    free_bytes = (cpu.free_bytes or (0,))[0]
    lines.append(f"  -  {'cpu':<22} {_memory(cpu.accelerator)}  {free_bytes / _GIB:.1f} GiB free")
    lines += ["", "Names for `--assume` and `hardware.accelerator`, with usable memory;"]
    lines += ["those with rates (a datasheet's peaks, in 16 bits) also for `tune --estimate`"]
    rows = [
        (item.name, _memory(item).strip(), _capability(item), _bandwidth(item), _flops(item))
        for item in catalogue()
    ]
    lines += columns(("name", "memory", "capability", "bandwidth", "compute"), rows, left=("name",))
    return "\n".join(lines)


def accelerators_json(found: Sequence[Gpu], *, cpu: Machine) -> str:
    """The same for scripts."""
    here = [
        {
            "index": gpu.index, "uuid": gpu.uuid, "device": gpu.name, **_row(kind(gpu)),
            "free_bytes": gpu.free_bytes, "holders": list(gpu.holders),
        }
        for gpu in found
    ]  # fmt: skip
    memory = {"total_bytes": cpu.accelerator.total_bytes, "free_bytes": (cpu.free_bytes or (None,))[0]}
    names = [_row(known) for known in catalogue()]
    return json.dumps({"version": 1, "found": here, "cpu": memory, "catalogue": names}, indent=2)


def _row(item: Accelerator) -> dict[str, object]:
    capability = list(item.compute_capability) if item.compute_capability else None
    total = {"name": item.name, "vendor": item.vendor, "total_bytes": item.total_bytes}
    rates = {"bandwidth_bytes_per_s": item.bandwidth_bytes_per_s, "flops": item.flops}
    return {**total, "compute_capability": capability, **rates}


def _memory(item: Accelerator) -> str:
    return f"{item.total_bytes / _GIB:7.2f} GiB"


def _capability(item: Accelerator) -> str:
    return ".".join(map(str, item.compute_capability)) if item.compute_capability else "-"


def _bandwidth(item: Accelerator) -> str:
    return f"{item.bandwidth_bytes_per_s / 1e9:,.0f} GB/s" if item.bandwidth_bytes_per_s else "-"


def _flops(item: Accelerator) -> str:
    return f"{item.flops / 1e12:,.0f} TFLOPS" if item.flops else "-"
