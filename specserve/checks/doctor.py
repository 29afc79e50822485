"""`doctor`: eleven checks of this host, whatever the profile. `up` asks two of them too.

Neither vLLM nor torch is imported, and no network is asked.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specserve.errors import gib
from specserve.hardware.accelerators import Accelerator, gpus, selected
from specserve.models.hub import hub_cache, is_offline
from specserve.plan.launch import PLUGIN, Host, this_host
from specserve.plan.launchplan import LaunchPlan
from specserve.vllm.versions import Installed, installed, known_versions, table

State = Literal["ok", "note", "bad"]
"""bad: breaks a launch, or what it serves is wrong. note: worth acting on; a launch goes anyway."""
_LITTLE_BYTES, _FULL_BYTES = 10 * 2**30, 64 * 2**20
_QUEUE_BYTES = 10 * 24 * 2**20
"""The largest message queue of a launch: `check_shm_free_space` in vLLM's shm_broadcast.py."""
_BUILD = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_KINDS = ("cuda", "hip", "xpu")
_NOT_COMPILED = ("enforce_eager", "compilation_config", "optimization_level", "enable_lora")
"""Engine arguments that switch compilation off, or may: what they say is vLLM's to judge."""


@dataclass(frozen=True, slots=True)
class Line:
    """One fact about this host, with its way out where it needs one."""

    name: str
    """The check that says it."""
    state: State
    text: str
    fix: str | None = None
    """What to do about it; None where there is nothing to do."""


ok, note, bad = partial(Line, "", "ok"), partial(Line, "", "note"), partial(Line, "", "bad")


@dataclass(frozen=True, slots=True)
class Here:
    """What the checks ask of this host."""

    vllm: Installed | None
    torch: Mapping[str, str]
    """Its `__version__`, and that of `cuda`, `hip` or `xpu` if it is built for one; or nothing."""
    gpus: Sequence[Accelerator]
    host: Host
    cpuinfo: str
    """Text of /proc/cpuinfo."""
    environ: Mapping[str, str]
    state: Path
    """Where specserve keeps state and logs."""
    servers: Callable[[], Iterable[Line]]

    @property
    def is_cpu(self) -> bool:
        """Whether vLLM here is the CPU build."""
        return self.vllm is not None and self.vllm.platform == "cpu"

    @property
    def wants_gpus(self) -> bool:
        """Whether vLLM here is the build for GPUs."""
        return self.vllm is not None and not self.is_cpu


def this(*, state: Path, servers: Callable[[], Iterable[Line]]) -> Here:
    """This host."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    torch = dict(_BUILD.findall(file.read_text(encoding="utf-8"))) if file else {}
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    return Here(installed(), torch, gpus(), this_host(), cpuinfo, os.environ, state, servers)


def _vllm(here: Here) -> Iterator[Line]:
    if (found := here.vllm) is None:
        yield bad(f"not installed in {sys.executable}: nothing can be launched here")
        return
    build = "CPU engine" if here.is_cpu else "for GPUs"
    text = f"{found.version} ({found.distribution}), {build}, Python {sys.version.split()[0]}"
    known = f"this specserve knows {', '.join(known_versions())}"
    is_known = table(found.version).exact
    yield ok(text) if is_known else note(f"{text}; {known}", "see vLLM's release notes")


def _torch(here: Here) -> Iterator[Line]:
    built = " ".join(f"{kind} {here.torch[kind]}" for kind in _KINDS if kind in here.torch)
    if here.torch and (built or not here.wants_gpus):
        yield ok(f"{here.torch.get('__version__', '?')}, built for {built or 'the CPU'}")
    elif here.torch:
        yield bad("built for the CPU, and vLLM here is the build for GPUs")
    elif here.vllm:
        yield bad("not installed, but vLLM needs it")


def _driver(here: Here) -> Iterator[Line]:
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda = divmod(int(pynvml.nvmlSystemGetCudaDriverVersion_v2()) // 10, 100)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value not in absent:
            fix = "restart the host, or reload the driver's module"
            yield (bad if here.wants_gpus else note)(f"does not answer: {error}", fix)
        return
    text = f"{version}, runs CUDA up to {cuda[0]}.{cuda[1]}"
    needed = here.torch.get("cuda", "0")
    is_too_old = cuda[0] < int(needed.partition(".")[0])  # it runs its own and older major versions
    yield bad(f"{text}; torch is built for {needed}") if is_too_old else ok(text)


def _gpu(here: Here) -> Iterator[Line]:
    shown = selected(here.gpus, devices=None, environ=here.environ)
    if here.gpus and here.is_cpu:
        fix = "an environment of its own with `pip install '.[vllm]'` uses them"
        yield note("vLLM here is the CPU build: it uses none", fix)
    elif here.wants_gpus and here.gpus and not shown:
        text = f"CUDA_VISIBLE_DEVICES={here.environ['CUDA_VISIBLE_DEVICES']} hides all"
        yield bad(f"{text} {len(here.gpus)}", "unset it, or name the GPUs to use")
    elif here.wants_gpus and not here.gpus and "cuda" in here.torch:
        yield bad("none found, but vLLM here is the build for GPUs")
    for gpu in shown:
        text = f"{gpu.index}: {gpu.name}, {gib(gpu.free_bytes or 0)} of {gib(gpu.total_bytes)} free"
        held, fix = "; ".join(gpu.holders), "end what holds it, or choose `hardware.devices`"
        yield note(f"{text}; {held}", fix) if held else ok(text)


def _cpu(here: Here) -> Iterator[Line]:
    is_x86 = re.search(r"^flags\s*:", here.cpuinfo, re.MULTILINE)
    if is_x86 and not re.search(r"\bavx2\b", here.cpuinfo):
        yield bad("without AVX2: vLLM ends with `Illegal instruction`")
    else:
        yield ok(f"{len(here.host.cpus)} cores")


def _plugin(here: Here) -> Iterator[Line]:
    fault = "is missing: at temperature > 0 speculation returns corrupted text"
    right = f"{PLUGIN}: text at temperature > 0 is right"
    yield ok(right) if here.host.plugin else bad(f"{PLUGIN} {fault}")


def _compiler(here: Here) -> Iterator[Line]:
    missing = "none: only profiles with `enforce_eager: true` start"
    yield ok(here.host.compiler) if here.host.compiler else note(missing)


def _shm(here: Here) -> Iterator[Line]:
    usage = shutil.disk_usage("/dev/shm")  # noqa: S108  # looked at, not written to
    text = f"{gib(usage.free)} of {gib(usage.total)} free"
    is_short = usage.free < _QUEUE_BYTES and (here.is_cpu or len(here.gpus) > 1)
    yield bad(f"{text}: vLLM needs {gib(_QUEUE_BYTES)}") if is_short else ok(text)


def _folders(here: Here) -> Iterator[Line]:
    """What is written into: the models' cache, that of vLLM, and specserve's own state."""
    environ, cache = here.environ, hub_cache(here.environ)
    home = Path(environ.get("XDG_CACHE_HOME") or "~/.cache")
    own = Path(environ.get("VLLM_CACHE_ROOT") or home / "vllm")  # vllm/envs.py
    variables = {cache: "HF_HOME", own: "VLLM_CACHE_ROOT", here.state: "SPECSERVE_STATE_DIR"}
    for folder, variable in variables.items():
        place = folder.expanduser()
        there = next(part for part in (place, *place.parents) if part.exists())
        free, fix = shutil.disk_usage(there).free, f"set {variable} to another folder"
        trouble = "" if free >= _FULL_BYTES else "the disk is full"
        if not there.is_dir():
            trouble = f"{there} is not a folder"
        elif not os.access(there, os.W_OK | os.X_OK):
            trouble = "cannot be written"
        if trouble:
            is_needed = folder != cache or not is_offline(environ)
            yield (bad if is_needed else note)(f"{place}: {trouble}", fix)
        elif folder == cache:
            text = f"{gib(free)} free for models in {place}"
            yield note(text, fix) if free < _LITTLE_BYTES else ok(text)


def _hub(here: Here) -> Iterator[Line]:
    """Whether there is a token, never what it is."""
    from huggingface_hub import get_token

    if is_offline(here.environ):
        yield ok("is not asked (offline): models must be in the cache, or in a folder")
    elif get_token():
        yield ok("a token is present")
    else:
        yield note("no token: gated models (Llama, Gemma) cannot be downloaded")


Probe = Callable[[Here], Iterable[Line]]
"""Says nothing where the question does not arise."""
CHECKS: tuple[tuple[str, Probe, str], ...] = (
    ("vLLM", _vllm, "in a clone of specserve: `pip install '.[vllm]'`, or `make setup` (CPU)"),
    ("torch", _torch, "`pip install --force-reinstall vllm` brings the one it was built with"),
    ("driver", _driver, "update it, or install a vLLM that is built for an older CUDA"),
    ("GPU", _gpu, "`nvidia-smi` must list them; in a container: `docker run --gpus all`"),
    ("CPU", _cpu, "use one with AVX2; in a virtual machine, pass the host's CPU through"),
    ("plug-in", _plugin, "`make setup` in specserve's sources (vllm-project/vllm#55005)"),
    ("compiler", _compiler, "`apt install g++`"),
    ("/dev/shm", _shm, "in a container: `docker run --shm-size 8g` or `--ipc host`"),  # noqa: S108
    ("folders", _folders, "make room"),
    ("Hub", _hub, "`hf auth login`, or set HF_TOKEN"),
    ("servers", lambda here: here.servers(), "`specserve down NAME` ends or clears it"),
)
"""Questions about the host, and the way out where a line that is not ok has none of its own."""
_OF_THE_CPU_ENGINE = ("CPU", "plug-in", "compiler")


def examine(here: Here) -> Iterator[Line]:
    """What each check says. One that fails becomes a line that says so: the others go on."""
    for name, probe, remedy in CHECKS:
        if name in _OF_THE_CPU_ENGINE and not here.is_cpu:
            continue
        try:
            lines = list(probe(here))
        except Exception as error:
            fix = "report it as a bug, unless the host is at fault"
            lines = [note(f"could not be examined: {type(error).__name__}: {error}", fix)]
        for line in lines:
            yield replace(line, name=name, fix=None if line.state == "ok" else line.fix or remedy)


def lacks_compiler(plan: LaunchPlan, host: Host) -> bool:
    """Whether a launch would load the weights, and then die with `InvalidCxxCompiler`.

    (vllm/platforms/cpu.py 0.29, `backend = "eager" if envs.VLLM_CPU_CI_ENV else "inductor"`)
    """
    given = (plan.engine_kwargs.get(name) for name in _NOT_COMPILED)
    is_off = any(value is not None and value is not False for value in given)
    return plan.platform == "cpu" and host.compiler is None and not is_off


def lacks_shared_memory(plan: LaunchPlan) -> bool:
    """Whether vLLM would refuse its message queues, because /dev/shm has no room for one."""
    sizes = (plan.engine_kwargs.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    has_workers = plan.platform == "cpu" or any(size != 1 for size in sizes)
    return has_workers and shutil.disk_usage("/dev/shm").free < _QUEUE_BYTES  # noqa: S108
