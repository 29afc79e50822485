"""The variants that are compared, how many of their servers run at the same time, and the host."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from specserve.diagnostics import Notices
from specserve.errors import FactError, UsageError
from specserve.measure.bench.result import VariantInfo
from specserve.plan.host import kv_cache_bytes
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile

BASELINE = "baseline"
PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant. Either `plan`, to be launched, or `url`."""

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

    @property
    def info(self) -> VariantInfo:
        """What a result says about it."""
        about = VariantInfo(self.name, self.is_baseline, self.model, url=self.url)
        if self.plan is None:
            return about
        block: Mapping[str, object] = self.plan.speculation or {}
        k = block.get("num_speculative_tokens")
        return VariantInfo(
            name=self.name,
            is_baseline=self.is_baseline,
            model=self.model,
            method=str(block["method"]) if block else None,
            draft_model=str(block["model"]) if block.get("model") else None,
            num_speculative_tokens=int(k) if isinstance(k, int) else None,
            fingerprint=self.plan.fingerprint,
            argv=self.plan.argv,
        )

    @property
    def visible(self) -> tuple[str, ...] | None:
        """The accelerators that its launch may see, as CUDA lists them; None: all that we may."""
        written = self.plan.env.get("CUDA_VISIBLE_DEVICES") if self.plan is not None else None
        if isinstance(written, str):
            return tuple(part.strip() for part in written.split(","))
        return self.devices


def checked(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return them, the one to compare with first. Raises UsageError if there are not two."""
    if len(variants) < 2:
        if variants and variants[0].url is not None:
            raise UsageError(
                "there is nothing to compare with this server",
                hint="add another server with `--with PROFILE|URL`",
            )
        raise UsageError(
            "there is nothing to compare: the profile does not speculate, and no other server was "
            "given",
            hint="add a server with `--with PROFILE|URL`, or add `alternatives` to the profile",
        )
    name, count = Counter(variant.name for variant in variants).most_common(1)[0]
    if count > 1:
        hint = "use `--with NAME=PROFILE` to give one of them another name"
        raise UsageError(f"two variants are named `{name}`", hint=hint)
    return tuple(sorted(variants, key=lambda variant: not variant.is_baseline))


def plan_variant(
    path: str,
    name: str | None,
    settings: Iterable[str],
    *,
    check: bool,
    starts: bool,
    notices: Notices,
    baseline: bool = False,
    alternative: str | None = None,
) -> Variant:
    """Return a server that is to be launched. Raises ProfileError, CheckFailed.

    `starts`: by the vLLM that is here; with `check`, models, memory and machine are judged too.
    """
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.schema import world_size

    options = LaunchOptions(
        # nobody else is to reach a server that is being measured
        settings=(*settings, "server.host=127.0.0.1"),
        port=0,
        alternative=BASELINE if baseline else alternative,
        check=check,
        starts=starts,
    )
    profile, plan = cleared(path, options, notices=notices)
    devices = profile.hardware.devices if profile.hardware else None
    return Variant(
        name=name or profile.name,
        plan=plan,
        is_baseline=baseline,
        model=profile.target.model,
        api_key_env=plan.api_key_env,
        ranks=world_size(profile),
        devices=tuple(map(str, devices)) if devices else None,
        memory_bytes=memory_bytes(profile, plan) if plan.platform == "cpu" else None,
    )


@dataclass(frozen=True, slots=True)
class Session:
    """Variants that run at the same time, so that their blocks take turns."""

    launch: int
    """Number of the launch; blocks of two variants are compared if they have the same one."""
    variants: tuple[str, ...]
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By variant: the accelerators that it gets, if each has its own."""


def sessions(
    variants: Sequence[Variant],
    *,
    launches: int,
    at_once: int,
    slots: Sequence[tuple[str, ...]] = (),
) -> tuple[Session, ...]:
    """Return the launches in order. `slots`: accelerators for each that runs at once.

    All variants in one session if they fit, else each alone, in an order that is reversed from
    launch to launch: a steady drift of the machine cancels. Raises UsageError if there are fewer
    slots than servers.
    """
    names = [variant.name for variant in variants]
    started = [
        variant.name
        for variant in variants
        if variant.plan is not None and variant.plan.platform != "cpu"
    ]
    found: list[Session] = []
    for launch in range(launches):
        groups = [[name] for name in (reversed(names) if launch % 2 else names)]
        for group in [names] if at_once >= len(names) else groups:
            on_gpus = [name for name in group if name in started]
            if len(on_gpus) > max(1, len(slots)):
                raise UsageError(
                    f"{len(on_gpus)} servers would run at the same time, but there are "
                    f"accelerators for only {len(slots)}",
                    hint="start over, or give the run as many accelerators as it began with",
                )
            used = slots[: len(on_gpus)]  # servers change places between launches
            places = {
                name: used[(at + launch) % len(used)] for at, name in enumerate(on_gpus) if used
            }
            found.append(Session(launch, tuple(group), places))
    return tuple(found)


class Fit(NamedTuple):
    """How many variants can run at the same time, and why not more."""

    at_once: int
    why: str
    slots: tuple[tuple[str, ...], ...] = ()
    """Accelerators for each of them."""


def fit(variants: Sequence[Variant]) -> Fit:
    """Return how many variants run at the same time; those at a URL take no room."""
    from specserve.hardware.accelerators import gpus, selected
    from specserve.hardware.host import host_memory

    planned = [variant for variant in variants if variant.plan is not None]
    if len(planned) < 2:
        return Fit(len(variants), "one server is started" if planned else "all servers run already")
    assert planned[0].plan is not None
    if planned[0].plan.platform == "cpu":
        free = host_memory().free_bytes * 0.9
        needs = [variant.memory_bytes for variant in planned if variant.memory_bytes is not None]
        if len(needs) < len(planned):
            return Fit(1, "how much memory a server takes is not known")
        needs.sort(reverse=True)
        most = next((n for n in range(len(needs), 0, -1) if sum(needs[:n]) <= free), 1)
        room = f"{free / 2**30:.1f} GiB are free"
        found = Fit(most, f"{sum(needs) / 2**30:.1f} GiB for all of them (estimated), {room}")
    elif len({variant.visible for variant in planned}) > 1:
        return Fit(1, "the profiles name different devices")
    else:
        # what a profile names wins over our own environment, as in its launch
        here = selected(gpus(), devices=planned[0].visible, environ=os.environ)
        ranks = max(variant.ranks for variant in planned)
        why = f"{len(here)} GPU{'' if len(here) == 1 else 's'} here; each server needs {ranks}"
        if len({gpu.name for gpu in here}) > 1:
            return Fit(1, f"{why}, of different kinds")
        uuids = [gpu.uuid for gpu in here]
        starts = range(0, len(uuids) - ranks + 1, ranks)
        slots = tuple(tuple(uuids[at : at + ranks]) for at in starts)
        found = Fit(len(slots), why, slots) if len(slots) > 1 else Fit(1, why)
    return found._replace(at_once=len(variants)) if found.at_once >= len(planned) else found


_PROCESSES_BYTES = 2 << 30
"""What vLLM's processes take beside weights and KV cache; 1.3 GiB were measured on the CPU."""


def memory_bytes(profile: Profile, plan: LaunchPlan) -> int | None:
    """Return an estimate for a server on the CPU: weights, KV cache, processes; None: unknown."""
    from specserve.hardware.accelerators import this_cpu
    from specserve.memory.situation import GPU_MEMORY_UTILIZATION
    from specserve.models.read import read_model

    env = plan.env if "VLLM_CPU_KVCACHE_SPACE" in plan.env else os.environ
    cache = kv_cache_bytes(plan.engine_kwargs, env)
    if cache is None:
        share = plan.engine_kwargs.get("gpu_memory_utilization") or GPU_MEMORY_UTILIZATION
        return int(float(str(share)) * this_cpu().accelerator.total_bytes)
    keys = profile.speculation.keys if profile.speculation else {}
    models = [(profile.target.model, profile.target.revision)]
    models += [(str(keys["model"]), keys.get("revision"))] if keys.get("model") else []
    weights = 0
    for model, revision in models:
        try:
            tensors = read_model(model, revision=revision, offline=True).tensors
            if tensors is None:
                return None
            weights += sum(tensor.size_bytes for tensor in tensors.values())
        except (FactError, KeyError):
            return None
    return weights + cache + _PROCESSES_BYTES


def versions() -> dict[str, str]:
    """Return the versions of what runs here; what is not installed is left out."""
    from specserve import __version__
    from specserve.vllm.versions import installed

    found = {"specserve": __version__, "python": platform.python_version()}
    here = installed()
    if here is not None:
        found["vllm"] = here.version
    for name in ("torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def host(*, platform_of_variants: str | None) -> dict[str, str]:
    """Return the accelerators that the variants use, and the processor and memory beside them."""
    import psutil

    from specserve.hardware.accelerators import gpus, kind, selected

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    named = None
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    found = {
        "cpu": named[1].strip() if named else platform.processor() or platform.machine(),
        "cores": str(cores),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    }
    if platform_of_variants == "cpu":
        return found | {"accelerator": "cpu"}
    here = selected(gpus(), devices=None, environ=os.environ) if platform_of_variants else []
    if here:
        names = sorted({kind(gpu).name for gpu in here})
        found["accelerator"] = f"{len(here)}x{names[0]}" if len(names) == 1 else ", ".join(names)
    return found
