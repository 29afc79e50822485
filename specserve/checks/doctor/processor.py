"""Lines about the CPU engine: instructions, OpenMP, the cure for its sampling, a compiler. Knows no GPU."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

from specserve.checks.doctor.line import Line
from specserve.plan.host import PLUGIN, Host

_KERNELS = {"avx512_bf16": "_C", "avx512f": "_C_AVX512", "avx2": "_C_AVX2"}
"""Which library vLLM loads, by the best instructions that the CPU has. (vllm/platforms/cpu.py, import_kernels)"""


def processor_lines(host: Host, *, package: Path, cpuinfo: str, machine: str | None = None) -> Iterator[Line]:
    """What the CPU engine needs of this machine. `package`: the folder of vLLM; `cpuinfo`: text of /proc/cpuinfo."""
    yield _instructions(
        host, package=package, cpuinfo=cpuinfo, is_x86=(machine or platform.machine()) == "x86_64"
    )
    if not host.plugin:
        yield Line(
            "plug-in",
            "bad",
            f"{PLUGIN} is not installed: at temperature > 0 speculation returns corrupted text",
            "`make setup` in specserve's sources installs it (vllm-project/vllm#55005)",
        )
    else:
        yield Line("plug-in", "ok", f"{PLUGIN}: text at temperature > 0 is right")
    if host.openmp is None:
        yield Line(
            "OpenMP",
            "note",
            "no libiomp5 in this Python: vLLM warns, and is slower with speculation",
            "`pip install intel-openmp`",
        )
    else:
        yield Line("OpenMP", "ok", host.openmp)
    if host.compiler is None:
        yield Line(
            "compiler",
            "note",
            "no C++ compiler: only profiles with `enforce_eager: true` start",
            "`apt install g++`",
        )
    else:
        yield Line("compiler", "ok", host.compiler)


def _instructions(host: Host, *, package: Path, cpuinfo: str, is_x86: bool) -> Line:
    cores = f"{len(host.cpus)} {'core' if len(host.cpus) == 1 else 'cores'}"
    nodes = f", {host.numa_nodes} memory nodes" if host.numa_nodes > 1 else ""
    if not is_x86:
        return Line("CPU", "ok", f"{cores}{nodes}, {platform.machine()}")
    flags = _flags(cpuinfo)
    best = next((name for name in _KERNELS if name in flags), None)
    if best is None and flags:
        fix = "run it on a CPU with AVX2; of a virtual machine, pass the host's CPU through"
        return Line("CPU", "bad", f"{cores}{nodes}, without AVX2: vLLM ends with `Illegal instruction`", fix)
    built = {file.name.partition(".")[0] for file in package.glob("_C*.so")}
    if best and built and _KERNELS[best] not in built:
        text = f"{cores}{nodes}: vLLM has no {_KERNELS[best]}, which it loads on this CPU ({best})"
        return Line("CPU", "bad", text, "install a vLLM that was built for this CPU")
    return Line("CPU", "ok", f"{cores}{nodes}, {best or 'instructions unknown'}")


def _flags(cpuinfo: str) -> frozenset[str]:
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()
