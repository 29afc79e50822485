"""A benchmark before it starts: what the command line asks; its variants, points and launches."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.result import Point, VariantInfo
from specserve.measure.values import numbers, seconds, whole_numbers
from specserve.measure.workloads import load, name_of
from specserve.plan.launch import kv_cache_bytes
from specserve.plan.launchplan import LaunchPlan

if TYPE_CHECKING:
    from specserve.profile.schema import Profile


BASELINE = "baseline"
PROFILE = "profile"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of the command line, as `run.json` keeps them."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    request_rate: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    launches: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant. Either `plan`, to be launched, or `url`."""

    name: str
    plan: LaunchPlan | None = None
    url: str | None = None
    is_baseline: bool = False
    api_key_env: str | None = None
    """NAME of the variable that holds the key."""

    @property
    def info(self) -> VariantInfo:
        """What a result says about it."""
        plan = self.plan
        if plan is None:
            return VariantInfo(self.name, self.is_baseline, url=self.url)
        model = str(plan.engine_kwargs.get("model", ""))
        return VariantInfo(self.name, self.is_baseline, model, plan.speculation, plan.argv)


def plan_variants(
    request: BenchRequest, *, starts: bool, notices: Notices
) -> tuple[Profile | None, tuple[Variant, ...]]:
    """Return the main profile, None if it is a server, and all variants, the baseline first.

    Raises UsageError if there are not two.
    """
    from specserve.profile.load import load_profile
    from specserve.serve.records import observe_all

    planned = partial(plan_variant, starts=starts, notices=notices)
    assert request.profile is not None
    profile, settings, found = None, request.settings, list[Variant]()
    if is_server(request.profile):
        if settings or request.alternatives:
            why = "`--set` and `--alternative` are for a profile; they cannot change a server"
            raise UsageError(why, hint="`specserve bench PROFILE` starts one")
        found.append(_running(request.profile, None))
    else:
        profile = load_profile(request.profile, settings=settings)
        wanted, speculates = request.alternatives, profile.speculation
        names = dict.fromkeys(profile.alternatives if wanted is None else wanted)
        names.pop(BASELINE, None)
        # if the profile passes its check, so does the baseline: each finding is shown once
        check = speculates is None and not names
        found.append(
            planned(request.profile, BASELINE, settings, alternative=BASELINE, check=check)
        )
        if speculates is not None:
            found.append(planned(request.profile, PROFILE, settings))
        for name in names:
            found.append(planned(request.profile, name, settings, alternative=name))
        if starts and (beside := [each.name for each in observe_all() if each.state != "dead"]):
            notices.warn(f"detached servers run on this host, too: {', '.join(beside)}")
    for text in request.others:
        label, place = named(text)
        found.append(_running(place, label) if is_server(place) else planned(place, label, ()))
    if len(found) < 2:
        hint = "add a server with `--with PROFILE|URL`, or add `alternatives` to the profile"
        raise UsageError("there is nothing to compare: this is one server", hint=hint)
    name, count = Counter(variant.name for variant in found).most_common(1)[0]
    if count > 1:
        hint = "use `--with NAME=PROFILE` to give one of them another name"
        raise UsageError(f"two variants are named `{name}`", hint=hint)
    return profile, tuple(found)


def plan_variant(
    path: str,
    name: str | None,
    settings: Iterable[str],
    *,
    starts: bool,
    notices: Notices,
    alternative: str | None = None,
    check: bool = True,
) -> Variant:
    """Return a server that is to be launched. Raises ProfileError.

    `starts`: by the vLLM that is here. `check`: models, memory and machine are judged, too.
    """
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions

    options = LaunchOptions(
        # nobody else is to reach a server that is being measured
        settings=(*settings, "server.host=127.0.0.1"),
        port=0,
        alternative=alternative,
        check=check,
        starts=starts,
    )
    profile, plan = prepare(path, options, notices=notices)
    return Variant(
        name=name or profile.name,
        plan=plan,
        is_baseline=alternative == BASELINE,
        api_key_env=plan.api_key_env,
    )


def side_by_side(variants: Sequence[Variant]) -> bool:
    """Return whether all servers run at once: on a GPU never, which each takes whole."""
    from specserve.hardware.accelerators import this_cpu

    started = [variant.plan for variant in variants if variant.plan is not None]
    free = min(this_cpu().free_bytes or (0,))
    return len(started) < 2 or sum(map(_server_bytes, started)) <= 0.9 * free


def _server_bytes(plan: LaunchPlan) -> float:
    """What a server takes on the CPU; infinity if it is not known, and on a GPU."""
    env = plan.env if "VLLM_CPU_KVCACHE_SPACE" in plan.env else os.environ
    cache = kv_cache_bytes(plan.engine_kwargs, env)
    named = (plan.engine_kwargs.get("model"), (plan.speculation or {}).get("model"))
    models = [Path(str(model)) for model in named if model]
    if plan.platform != "cpu" or cache is None or not all(map(Path.is_dir, models)):
        return math.inf
    weights = sum(file.stat().st_size for model in models for file in model.glob("*.safetensors"))
    return weights + cache + (2 << 30)  # its processes: 1.3 GiB were measured


def named(text: str) -> tuple[str | None, str]:
    """Return label and place of `[LABEL=]PROFILE|URL|NAME`; a file with a `=` needs no label."""
    match = None if Path(text).is_file() else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def is_server(text: str) -> bool:
    """Return whether it is the address of a server, or the name of a detached one."""
    from specserve.serve.records import names

    address = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?"
    return "://" in text or bool(re.fullmatch(address, text)) or text in names()


def _running(text: str, label: str | None) -> Variant:
    """Return a server that runs; its key is that of the detached server, or VLLM_API_KEY."""
    from specserve.serve.records import locate

    server, record = locate(text)
    name = record.api_key_env if record else "VLLM_API_KEY"
    key_env = name if server.api_key else None
    return Variant(label or server.root.partition("://")[2], url=server.root, api_key_env=key_env)


BUDGET = "30m"
LAUNCHES, MOST_ALONE = 2, 4
"""Of each server; where one runs at a time and stays undecided, up to the second."""
WORKLOADS = ("chat", "code")
LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}
_BLOCKS, _CPU_TOKENS = 8, 64
_QUICK_BLOCKS, _QUICK_PROMPTS, _QUICK_TOKENS = 6, 18, 48


@dataclass(frozen=True, slots=True)
class Session:
    """Variants that run at the same time, so that their blocks take turns."""

    launch: int
    """Number of the launch; blocks of two variants are compared if they have the same one."""
    variants: tuple[str, ...]


def sessions(variants: Sequence[Variant], *, launches: int, together: bool) -> tuple[Session, ...]:
    """Return the launches in order: together, or each alone in the order A B B A.

    The order is reversed from launch to launch: a steady drift of the machine cancels, and so does
    what the server gains that is started last.
    """
    names = tuple(variant.name for variant in variants)
    found = list[Session]()
    for launch in range(launches):
        order = names[::-1] if launch % 2 else names
        every = [order] if together else [(name,) for name in order]
        found += [Session(launch, each) for each in every]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    variants: tuple[Variant, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    blocks: int
    """Blocks of each point in a round; each launch has one round, or more until all is decided."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    budget_s: float = 1800.0
    """Time for measuring; launches come on top. Blocks that would begin later are left out."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    together: bool = False
    """Whether the servers run side by side."""
    prompts: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The profile's, or the first variant's."""
        return self.profile.name if self.profile is not None else self.variants[0].name

    @property
    def launches(self) -> int:
        """Launches of each variant."""
        return sum(self.variants[-1].name in each.variants for each in self.sessions)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any variant is started here."""
        return next((each.plan.platform for each in self.variants if each.plan is not None), None)


def plan_bench(
    request: BenchRequest,
    *,
    notices: Notices,
    starts: bool = True,
    together: bool | None = None,
    planned: tuple[Profile, tuple[Variant, ...]] | None = None,
) -> BenchPlan:
    """Plan a command. `starts`: models, memory and machine are checked, too.

    `together`: whether the servers of the run that is resumed ran at the same time. `planned`: a
    profile's variants, instead of those of the request. Raises ProfileError, UsageError.
    """
    if request.profile == "-" or "-" in request.workloads:
        why = "`bench` cannot read from stdin because the run could not be resumed"
        raise UsageError(why, hint="name a file")
    profile, variants = planned or plan_variants(request, starts=starts, notices=notices)
    if together is None:
        together = side_by_side(variants)
    platform = next((each.plan.platform for each in variants if each.plan is not None), None)
    points = points_of(request, defaults=(WORKLOADS, LOADS.get(platform or "cuda", (1, 4))))
    if request.launches and platform is None:
        raise UsageError("`--launches` cannot start servers again that bench did not start")
    launches = request.launches or (LAUNCHES if platform and not request.quick else 1)
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        variants=variants,
        sessions=sessions(variants, launches=launches, together=together),
        points=points,
        blocks=_QUICK_BLOCKS if request.quick else _BLOCKS,
        sources=files,
        max_tokens=request.max_tokens or tokens,
        limit=limit,
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=5.0),
        request=request,
        profile=profile,
        together=together,
        prompts=prompts_of((point.workload for point in points), files, limit=limit),
    )


def points_of(
    request: BenchRequest, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
) -> tuple[Point, ...]:
    """Return what is measured. `defaults`: workloads and concurrencies.

    Raises UsageError for what is no list of numbers.
    """
    workloads = tuple(sources(request.workloads)) or defaults[0]
    temperatures = numbers(request.temperature, "--temperature", least=0.0, most=2.0) or (0.0,)
    given = whole_numbers(request.concurrency, "--concurrency", least=1, most=4096)
    loads: Sequence[tuple[int, float | None]]
    loads = [(load, None) for load in given or ((1,) if request.quick else defaults[1])]
    if rates := numbers(request.request_rate, "--request-rate", least=0.01, most=1000):
        loads = [(0, rate) for rate in rates]
    return tuple(
        Point(workload, temperature, *load)
        for workload, temperature, load in itertools.product(workloads, temperatures, loads)
    )


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """Return how many prompts each workload has. Raises UsageError, FactError if it is none."""
    return {
        name: len(load(sources.get(name, name), limit=limit).prompts)
        for name in dict.fromkeys(names)
    }


def sources(workloads: Sequence[str]) -> dict[str, str]:
    """Return what each is loaded from, by its name. Raises UsageError for a name twice."""
    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are named `{name}`", hint="rename one of the files")
    return found
