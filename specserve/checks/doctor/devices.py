"""Lines about GPUs and their driver: do they go with the vLLM and torch that are installed. Reads no device."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence

from specserve.checks.doctor.driver import Driver
from specserve.checks.doctor.line import Line
from specserve.checks.doctor.software import Software
from specserve.checks.figures import gib
from specserve.hardware.gpus import Gpu, kind, selected

_LEAST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""Of a CUDA's major version, on Linux. (CUDA Toolkit Release Notes, table "CUDA Toolkit and Minimum Required Driver
Version for CUDA Minor Version Compatibility")"""
_HOLDER = re.compile(r"\bby pid (\d+)\b")


def device_lines(
    driver: Driver, software: Software, *, environ: Mapping[str, str], ours: Container[int] = ()
) -> Iterator[Line]:
    """The driver against torch's CUDA, and the GPUs that a launch would see. `ours`: processes of our servers."""
    other = _other_vendor(software)
    if other:
        yield Line("GPU", "note", f"torch is built for {other}: specserve does not know such devices")
        return
    wants = software.vllm is not None and not software.is_cpu
    yield from _driver(driver, software, wants=wants)
    if not driver.gpus:
        if wants and driver.error is None:
            text = "none is seen, and vLLM here is the build for GPUs"
            yield Line(
                "GPU", "bad", text, "`nvidia-smi` must list them; of a container: `docker run --gpus all`"
            )
        return
    yield from _gpus(driver.gpus, environ=environ, wants=wants, ours=ours)
    if software.is_cpu:
        text = "vLLM here is the CPU build: it leaves them alone"
        yield Line("GPU", "note", text, "an environment of its own with `pip install '.[vllm]'` uses them")


def _other_vendor(software: Software) -> str | None:
    torch = software.torch
    if torch is None:
        return None
    return f"ROCm {torch.hip}" if torch.hip else f"XPU {torch.xpu}" if torch.xpu else None


def _driver(driver: Driver, software: Software, *, wants: bool) -> Iterator[Line]:
    if driver.error is not None:
        fix = (
            "restart the host, or load the driver's module anew, where it was updated; else see `nvidia-smi`"
        )
        yield Line("driver", "bad" if wants else "note", f"NVIDIA's does not answer: {driver.error}", fix)
        return
    if driver.version is None and driver.cuda is None:
        return
    text = driver.version or "of unknown version"
    if driver.cuda is None:
        yield Line("driver", "ok", text)
        return
    text += f", runs CUDA up to {_dotted(driver.cuda)}"
    needed = _pair(software.torch.cuda) if software.torch and software.torch.cuda else None
    if needed is None or driver.cuda >= needed:
        yield Line("driver", "ok", text)
    elif driver.cuda[0] < needed[0]:
        least = _LEAST_DRIVER.get(needed[0])
        fix = f"update it to {least} or newer" if least else "update it"
        text += f"; torch is built for {_dotted(needed)}"
        yield Line("driver", "bad", text, f"{fix}, or install a vLLM that is built for CUDA {driver.cuda[0]}")
    else:
        text += f"; torch is built for {_dotted(needed)}: what is compiled while it runs may be refused"
        yield Line("driver", "note", text, f"update it to one that runs CUDA {_dotted(needed)}")


def _gpus(
    found: Sequence[Gpu], *, environ: Mapping[str, str], wants: bool, ours: Container[int]
) -> Iterator[Line]:
    shown = selected(found, devices=None, environ=environ)
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if not shown:
        text = f"CUDA_VISIBLE_DEVICES={hidden} hides all {len(found)}"
        yield Line(
            "GPU", "bad" if wants else "note", text, "unset it, or name the GPUs that a launch may use"
        )
        return
    if len(shown) < len(found):
        yield Line("GPU", "ok", f"CUDA_VISIBLE_DEVICES={hidden} shows {len(shown)} of {len(found)}")
    for name in dict.fromkeys(kind(gpu).name for gpu in shown):
        same = [gpu for gpu in shown if kind(gpu).name == name]
        free = min(gpu.free_bytes for gpu in same)
        each = f"{gib(free)} of {gib(same[0].total_bytes)} free" + (
            " on the fullest" if len(same) > 1 else ""
        )
        yield Line("GPU", "ok", f"{len(same)} x {name}, {each}")
    for gpu in shown:
        strangers = [holder for holder in gpu.holders if not _is_ours(holder, ours)]
        if strangers:
            text = f"GPU {gpu.index}: {', '.join(strangers[:3])}" + (", …" if len(strangers) > 3 else "")
            yield Line(
                "GPU", "note", text, "end it where nobody needs it, or choose others by `hardware.devices`"
            )


def _is_ours(holder: str, ours: Container[int]) -> bool:
    match = _HOLDER.search(holder)
    return match is not None and int(match[1]) in ours


def _pair(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
