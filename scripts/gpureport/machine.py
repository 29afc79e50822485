"""The machine that a report is made on, and what it lacks."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from gpureport.children import ENVIRONMENT, ROOT, executable
from gpureport.step import Target

ASSUMED = "H100-80GB"
"""What --dry-run plans for on a machine without a GPU."""
NEEDED = {
    "yaml": "pyyaml",
    "typer": "typer",
    "rich": "rich",
    "openai": "openai",
    "prometheus_client": "prometheus-client",
    "psutil": "psutil",
    "platformdirs": "platformdirs",
    "packaging": "packaging",
    "huggingface_hub": "huggingface-hub",
    "tokenizers": "tokenizers",
    "pynvml": "nvidia-ml-py",
}
"""Modules that `check`, `up`, `verify`, `bench` and `tune` import, and the packages that bring them."""
ENGINE = {"vllm": "vllm", "torch": "torch", "transformers": "transformers", "safetensors": "safetensors"}


class MachineError(Exception):
    """This machine cannot be described."""


def missing(*, with_engine: bool) -> str | None:
    """One sentence about the modules that are not there and how to bring them; None if all are."""
    wanted = NEEDED | (ENGINE if with_engine else {})
    lacking = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
    if not lacking:
        return None
    return (
        f"missing here: {', '.join(lacking)}; bring them with `pip install --target FOLDER --no-deps "
        f"{' '.join(lacking)}` (on another machine if this one has no network) and PYTHONPATH=FOLDER"
    )


def target(*, is_small: bool) -> tuple[Target, dict[str, Any]]:
    """The machine to plan for, and what `specserve gpus` says of it."""
    found, minor = _gpus(), re.match(r"\d+\.\d+", versions().get("vllm", ""))
    here, vllm = found["found"], minor[0] if minor else None
    if is_small:
        return Target("cpu", int(found["cpu"]["total_bytes"]), True, vllm), {}
    if here:
        return Target(str(here[0]["name"]), int(here[0]["total_bytes"]), False, vllm), dict(here[0])
    known = next(item for item in found["catalogue"] if item["name"] == ASSUMED)
    return Target(ASSUMED, int(known["total_bytes"]), False, vllm), {}


def describe(plan_for: Target, gpu: Mapping[str, Any]) -> dict[str, Any]:
    """Accelerator, processor, memory and versions: nothing that names the host or its user."""
    return {
        "accelerator": plan_for.accelerator,
        "device": gpu.get("device"),
        "total_bytes": plan_for.total_bytes,
        "is_small": plan_for.is_small,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "driver": _driver(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of specserve and its commit, Python, and the engine's packages that are installed."""
    from specserve import __version__

    found = {"specserve": __version__, "python": platform.python_version()}
    if commit := _commit():
        found["commit"] = commit
    for name in ("vllm", "torch", "transformers", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> dict[str, Any]:
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])}
    command = executable(["specserve", "doctor", "--accelerators", "--format", "json"])
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise MachineError(
            f"`specserve gpus` failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
        )
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def _python_path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _driver() -> str | None:
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return None
