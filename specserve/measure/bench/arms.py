"""The servers that are compared, how many of them run at the same time on this host, and the host itself."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from specserve.errors import FactError, UsageError
from specserve.measure.bench.result import ArmInfo
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.profile.values import human_int

BASELINE = "baseline"
PROFILE = "profile"
_APART = 10_000


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the servers. Either `plan`, to be launched, or `url`."""

    name: str
    plan: LaunchPlan | None = None
    url: str | None = None
    is_baseline: bool = False
    model: str = ""
    """What the target is, as the profile names it."""
    api_key_env: str | None = None
    """NAME of the variable that holds the key."""
    ranks: int = 1
    """Accelerators that it takes."""
    devices: tuple[str, ...] | None = None
    """Those that its profile names."""
    memory_bytes: int | None = None
    """Of the host, on the CPU; None if nobody knows."""
    local_models: tuple[str, ...] = ()
    """Of its models, those that are folders here."""

    @property
    def info(self) -> ArmInfo:
        """What a result says about it."""
        if self.plan is None:
            return ArmInfo(self.name, is_baseline=self.is_baseline, model=self.model, url=self.url)
        block: Mapping[str, object] = self.plan.speculation or {}
        k = block.get("num_speculative_tokens")
        return ArmInfo(
            name=self.name,
            is_baseline=self.is_baseline,
            model=self.model,
            method=str(block["method"]) if block else None,
            draft_model=str(block["model"]) if block.get("model") else None,
            num_speculative_tokens=int(k) if isinstance(k, int) else None,
            fingerprint=self.plan.fingerprint,
            argv=self.plan.argv,
            local_models=self.local_models,
        )

    @property
    def is_on_accelerators(self) -> bool:
        """Whether it is started here, and not on the CPU."""
        return self.plan is not None and self.plan.platform != "cpu"

    @property
    def visible(self) -> tuple[str, ...] | None:
        """The accelerators that its launch may see, as CUDA lists them; None: all that we may see."""
        written = self.plan.env.get("CUDA_VISIBLE_DEVICES") if self.plan is not None else None
        if isinstance(written, str):
            return tuple(part.strip() for part in written.split(","))
        return self.devices

    @property
    def is_suffix(self) -> bool:
        """Whether it remembers the answers of earlier requests."""
        return bool(self.plan and (self.plan.speculation or {}).get("method") == "suffix")


def checked(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms, the one that the others are compared with first. Raises UsageError if there are not two."""
    if len(arms) < 2:
        raise UsageError(
            "there is nothing to compare: no other arm is given, and this one has no speculation to be without",
            hint="`--with PROFILE|URL` adds one; `alternatives` of the profile are arms, too",
        )
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two arms are called `{twice}`", hint="`--with NAME=PROFILE` gives another name")
    return tuple(sorted(arms, key=lambda arm: not arm.is_baseline))


def planned_arm(profile: Profile, plan: LaunchPlan, *, name: str, is_baseline: bool) -> Arm:
    """A server that is to be launched, with what it takes of this host."""
    from specserve.models.read import local_path
    from specserve.profile.schema import world_size

    devices = profile.hardware.devices if profile.hardware else None
    draft = profile.speculation.keys.get("model") if profile.speculation else None
    models = [profile.target.model, *([str(draft)] if draft else [])]
    return Arm(
        name=name,
        plan=plan,
        is_baseline=is_baseline,
        model=profile.target.model,
        api_key_env=plan.api_key_env,
        ranks=world_size(profile),
        devices=tuple(map(str, devices)) if devices else None,
        memory_bytes=memory_bytes(profile, plan) if plan.platform == "cpu" else None,
        local_models=tuple(model for model in models if local_path(model) is not None),
    )


@dataclass(frozen=True, slots=True)
class Session:
    """Arms that run at the same time, so that their blocks take turns."""

    launch: int
    arms: tuple[str, ...]
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By arm: the accelerators that it gets, if each has its own."""
    first_block: int = 0
    """Number of its first block: those of two sessions that share an arm must not be taken for one."""


def sessions(
    arms: Sequence[Arm], *, launches: int, at_once: int, slots: Sequence[tuple[str, ...]] = ()
) -> tuple[Session, ...]:
    """Which launches there are, in order. `slots`: groups of accelerators, one for each arm that runs at once.

    All arms in one session if so many fit, else each in one with the arm that it is compared with, else alone,
    in an order that is turned round from launch to launch. Arms change places between launches, so that no arm always
    has the better accelerator.
    """
    names = [arm.name for arm in arms]
    found: list[Session] = []
    for launch in range(launches):
        if at_once >= len(names):
            groups = [names]
        elif at_once > 1:
            others = names[1:]
            groups = [
                [names[0], *others[first : first + at_once - 1]]
                for first in range(0, len(others), at_once - 1)
            ]
        else:
            groups = [[name] for name in (names if launch % 2 == 0 else names[::-1])]
        apart = 0 if at_once == 1 else _APART
        found += [
            Session(launch, tuple(group), _placed(group, arms, slots, launch), number * apart)
            for number, group in enumerate(groups)
        ]
    return tuple(found)


def _placed(
    group: Sequence[str], arms: Sequence[Arm], slots: Sequence[tuple[str, ...]], launch: int
) -> dict[str, tuple[str, ...]]:
    """A slot for each server of the group that is started on accelerators; one at a URL has its own."""
    started = [arm.name for arm in arms if arm.name in group and arm.is_on_accelerators]
    if len(started) > max(1, len(slots)):
        raise UsageError(
            f"{len(started)} servers would run at the same time, and there are accelerators for {len(slots)}",
            hint="start over, or let the run see as many accelerators as when it began",
        )
    used = slots[: len(started)]
    return {name: used[(index + launch) % len(used)] for index, name in enumerate(started) if used}


_PROCESSES_BYTES = 2 << 30
"""What vLLM's processes take beside weights and KV cache; 1.3 GiB were measured on the CPU."""
_USABLE = 0.9


@dataclass(frozen=True, slots=True)
class Fit:
    """How many, and why not more. `slots`: accelerators for each of them."""

    at_once: int
    why: str
    slots: tuple[tuple[str, ...], ...] = ()


def fit(arms: Sequence[Arm]) -> Fit:
    """Arms at a URL run already and take no room."""
    planned = [arm for arm in arms if arm.plan is not None]
    if len(planned) < 2:
        return Fit(len(arms), "at most one server is started")
    assert planned[0].plan is not None
    return _on_cpu(arms, planned) if planned[0].plan.platform == "cpu" else _on_gpus(arms, planned)


def _on_cpu(arms: Sequence[Arm], planned: Sequence[Arm]) -> Fit:
    from specserve.hardware.host import host_memory

    free = host_memory().free_bytes * _USABLE
    if any(arm.memory_bytes is None for arm in planned):
        return Fit(1, "how much memory a server takes is not known")
    needs = sorted((arm.memory_bytes or 0 for arm in planned), reverse=True)
    most = next((count for count in range(len(needs), 0, -1) if sum(needs[:count]) <= free), 1)
    why = f"{sum(needs) / 2**30:.1f} GiB for all of them (estimated), {free / 2**30:.1f} GiB are free"
    return Fit(len(arms) if most == len(planned) else most, why)


def _on_gpus(arms: Sequence[Arm], planned: Sequence[Arm]) -> Fit:
    from specserve.hardware.accelerators import gpus, selected

    if len({arm.visible for arm in planned}) > 1:
        return Fit(1, "the profiles name different devices")
    # what a profile names wins over our own environment, as in its launch
    found = selected(gpus(), devices=planned[0].visible, environ=os.environ)
    ranks = max(arm.ranks for arm in planned)
    slots = [
        tuple(gpu.uuid for gpu in found[first : first + ranks])
        for first in range(0, len(found) - ranks + 1, ranks)
    ]
    why = f"{len(found)} GPUs, {ranks} for each server"
    if len({gpu.name for gpu in found}) > 1:
        return Fit(1, f"{why}, of different kinds")
    if len(slots) < 2:
        return Fit(1, why)
    return Fit(len(arms) if len(slots) >= len(planned) else len(slots), why, tuple(slots))


def memory_bytes(profile: Profile, plan: LaunchPlan) -> int | None:
    """Of a server on the CPU, estimated: weights as their files have them, KV cache, processes; None: unknown.

    The size of the KV cache is the plan's, which has one if the profile sets none.
    """
    weights = _weights(profile.target.model, profile.target.revision)
    block = profile.speculation
    draft = (
        _weights(str(block.keys["model"]), block.keys.get("revision"))
        if block and block.keys.get("model")
        else 0
    )
    cache = _kv_bytes(plan)
    if cache is None:
        from specserve.hardware.accelerators import this_cpu
        from specserve.memory.defaults import GPU_MEMORY_UTILIZATION

        share = plan.engine_kwargs.get("gpu_memory_utilization")
        share = float(share) if isinstance(share, int | float) else GPU_MEMORY_UTILIZATION
        return int(share * this_cpu().accelerator.total_bytes)
    if weights is None or draft is None:
        return None
    return weights + draft + cache + _PROCESSES_BYTES


def _weights(model: str, revision: str | None) -> int | None:
    from specserve.models.read import read_model

    try:
        facts = read_model(model, revision=revision, offline=True)
    except FactError:
        return None
    if facts.tensors is None:
        return None
    try:
        return sum(tensor.size_bytes for tensor in facts.tensors.values())
    except KeyError:
        return None


def _kv_bytes(plan: LaunchPlan) -> int | None:
    """The size of the KV cache that a plan sets; None if vLLM takes a share of the memory."""
    value = plan.engine_kwargs.get("kv_cache_memory_bytes")
    space = plan.env.get("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE"))
    if isinstance(value, str):
        return human_int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(space) << 30 if isinstance(space, str) and space.strip().isdigit() and int(space) else None


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


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What others use of the host's processors."""

    busy_share: float
    """0 to 1."""
    stolen_percent: float
    """Time that the hypervisor gave to other guests."""

    @property
    def text(self) -> str:
        """For the result."""
        return f"{self.busy_share:.0%} busy, {self.stolen_percent:.0f}% stolen"


_LOAD_SAMPLE_S = 0.5


def host_load() -> HostLoad:
    """How busy the processors are, over half a second."""
    import psutil

    times = psutil.cpu_times_percent(interval=_LOAD_SAMPLE_S)
    stolen = float(getattr(times, "steal", 0.0))
    idle = float(times.idle) + float(getattr(times, "iowait", 0.0))
    return HostLoad(max(0.0, 1 - (idle + stolen) / 100), stolen)


def environment() -> dict[str, str]:
    """The variables of the allow-list that are set."""
    return {name: _without_home(os.environ[name]) for name in VARIABLES if os.environ.get(name)}


def _gpus() -> dict[str, str]:
    from specserve.hardware.accelerators import gpus, kind, selected

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
