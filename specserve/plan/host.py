"""The machine that a launch starts on, and what the CPU engine needs there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specserve.plan.launchplan import Origin, node_count
from specserve.profile.schema import Profile, world_size
from specserve.vllm.arguments import human_int

PLUGIN = "specserve_vllm_cpu"
"""Entry point of the CPU set-up's plug-in that cures vllm-project/vllm#55005."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Host:
    """The facts of a machine that a launch depends on."""

    program: tuple[str, ...]
    """What stands before the model: vLLM's script beside this Python, or its module."""
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

    script = Path(sys.executable).with_name("vllm")
    module = (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main")
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    plugins = metadata.entry_points(group="vllm.general_plugins")
    return Host(
        program=(*((str(script),) if script.exists() else module), "serve"),
        plugin=any(point.name == PLUGIN for point in plugins),
        openmp=str(openmp) if openmp.exists() else None,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        capacity_bytes=this_cpu().accelerator.total_bytes,
        compiler=shutil.which(os.environ.get("CXX", "g++")),  # torch/_inductor/config.py, `cpp.cxx`
    )


def for_cpu(
    profile: Profile, host: Host, *, environ: Mapping[str, str] = os.environ
) -> Iterator[Origin]:
    """Variables and arguments for the CPU engine here. `environ`: what the server inherits."""
    env = {**environ, **profile.env}
    before, openmp = env.get("LD_PRELOAD", ""), host.openmp
    if openmp and "libiomp5" not in before and " " not in openmp:  # LD_PRELOAD knows no quotes
        why = "Intel OpenMP is faster, and vLLM warns without it"
        yield Origin("LD_PRELOAD", f"{openmp}:{before}" if before else openmp, None, why)
    ranks, binding = world_size(profile) // node_count(profile), "VLLM_CPU_OMP_THREADS_BIND"
    if ranks > host.numa_nodes and not env.get(binding):
        why = f"vLLM binds one rank to a NUMA node, and {ranks} ranks share {host.numa_nodes}"
        share = len(host.cpus) // ranks
        parts = [host.cpus[rank * share : (rank + 1) * share] for rank in range(ranks)]
        value = "|".join(",".join(map(str, part)) for part in parts) if share else "nobind"
        yield Origin(binding, value, None, why)
    listed = env.get("VLLM_PLUGINS", PLUGIN).split(",")
    if host.plugin and PLUGIN not in listed:
        why = "your allow-list would drop the cure for corrupted text (vllm-project/vllm#55005)"
        yield Origin("VLLM_PLUGINS", ",".join([*filter(None, listed), PLUGIN]), None, why)
    named = {"kv_cache_memory_bytes", "gpu_memory_utilization"} & profile.engine.keys()
    if not named and not env.get("VLLM_CPU_KVCACHE_SPACE"):
        size = default_kv_bytes(host.capacity_bytes)
        why = "vLLM would claim 92 % of all memory; specserve plans a quarter of it, at most 4 GiB"
        yield Origin("kv_cache_memory_bytes", size, None, why)


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
    space = str(env.get("VLLM_CPU_KVCACHE_SPACE", ""))
    return int(space) * _GIB or None if space.strip().isdecimal() else None
