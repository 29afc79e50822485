"""The machine and the versions that a benchmark ran on: an allow-list, so that nothing else of it gets out."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_PLUGINS",
    "VLLM_USE_V2_MODEL_RUNNER",
)
"""Of the environment, what can change a speed and names no secret."""


def versions() -> dict[str, str]:
    """Of what runs here; what is not installed is left out."""
    from specserve import __version__
    from specserve.vllm.versions import installed

    found = {"specserve": __version__, "python": platform.python_version()}
    here = installed()
    if here is not None:
        found["vllm"] = here.version
    for name in ("torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def host(*, platform_of_arms: str | None) -> dict[str, str]:
    """The accelerators that the arms use, and the processor and memory beside them."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    found = {
        "cpu": _processor(),
        "cores": str(cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
    }
    if platform_of_arms == "cpu":
        found["accelerator"] = "cpu"
    elif platform_of_arms is not None:
        found |= _gpus()
    return found


def environment() -> dict[str, str]:
    """The variables of the allow-list that are set."""
    return {name: _without_home(os.environ[name]) for name in VARIABLES if os.environ.get(name)}


def _gpus() -> dict[str, str]:
    from specserve.facts.nvml import gpus, kind, selected

    found = selected(gpus(), devices=None, environ=os.environ)
    if not found:
        return {}
    names = sorted({kind(gpu).name for gpu in found})
    driver = _driver()
    return {"accelerator": f"{len(found)}x{names[0]}" if len(names) == 1 else ", ".join(names)} | driver


def _driver() -> dict[str, str]:
    try:
        return {"driver": Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()}
    except OSError:
        return {}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _without_home(text: str) -> str:
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
