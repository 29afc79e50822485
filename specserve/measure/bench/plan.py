"""A benchmark before it starts: its options, variants, points and sessions, and its blocks."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import (
    BASELINE,
    PROFILE,
    Fit,
    Session,
    Variant,
    checked,
    fit,
    plan_variant,
    sessions,
)
from specserve.measure.values import numbers, refuse_given, seconds, whole_numbers
from specserve.measure.workloads.load import load, name_of
from specserve.measure.workloads.workload import Prompt, Workload

if TYPE_CHECKING:
    from specserve.profile.schema import Profile

BUDGET = "30m"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}
_BLOCKS, _CPU_TOKENS = 8, 64
_QUICK_BLOCKS, _QUICK_PROMPTS, _QUICK_TOKENS = 6, 18, 48
PER_SLOT = 3
"""Requests in a block for each that runs at once: its end, where fewer run, must not weigh much."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of the command line, as `run.json` keeps them."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    launches: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    variants: tuple[Variant, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    blocks: int
    """Of each point in a round; each launch has one round, and more where these decide nothing."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    """Prompts of a workload, at most."""
    budget_s: float = 1800.0
    """Of measuring; launches come on top. Blocks that would begin later are left out."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    """None if the first variant is a URL."""
    fit: Fit = field(default_factory=lambda: Fit(1, ""))
    prompts: Mapping[str, int] = field(default_factory=dict)
    """How many each workload has."""

    @property
    def name(self) -> str:
        """The profile's, or the first variant's."""
        return self.profile.name if self.profile is not None else self.variants[0].name

    @property
    def own_variant(self) -> str:
        """The variant that the profile itself is; without `speculation` it is the baseline."""
        if self.profile is None:
            return self.variants[0].name
        return PROFILE if self.profile.speculation is not None else BASELINE

    @property
    def launches(self) -> int:
        """Launches of each variant."""
        return sum(self.variants[-1].name in each.variants for each in self.sessions)

    def launched(self, *names: str) -> int:
        """Return how many of these variants are started for the benchmark."""
        return sum(variant.name in names and variant.plan is not None for variant in self.variants)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any variant is started here."""
        return next(
            (variant.plan.platform for variant in self.variants if variant.plan is not None), None
        )


def plan_bench(
    request: BenchRequest, *, notices: Notices, starts: bool = True, at_once: int | None = None
) -> BenchPlan:
    """Plan a command. `starts`: models, memory and machine are checked, too.

    `at_once`: as many variants as a run that is resumed had at the same time. Raises ProfileError,
    CheckFailed, UsageError.
    """
    profile, variants = _variants(request, starts=starts, notices=notices)
    room = fit(variants)
    if at_once is not None:
        room = room._replace(at_once=at_once)
    platform = next(
        (variant.plan.platform for variant in variants if variant.plan is not None), "cuda"
    )
    wanted = points_of(request, profile, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    if request.launches and not any(variant.plan is not None for variant in variants):
        raise UsageError("`--launches` cannot start servers again that bench did not start")
    # one server at a time: A B B A, so that a steady drift of the machine cancels
    launches = request.launches or (1 if room.at_once >= len(variants) or request.quick else 2)
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        variants=variants,
        sessions=sessions(variants, launches=launches, at_once=room.at_once, slots=room.slots),
        points=wanted,
        blocks=_QUICK_BLOCKS if request.quick else _BLOCKS,
        sources=files,
        max_tokens=request.max_tokens or tokens,
        limit=limit,
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=5.0),
        request=request,
        profile=profile,
        fit=room,
        prompts=prompts_of((point.workload for point in wanted), files, limit=limit),
    )


def with_places(request: BenchRequest) -> BenchRequest:
    """Return it with absolute names of files, and URLs of detached servers.

    The run may be resumed from elsewhere. Raises UsageError for stdin.
    """
    from specserve.serve.detached.observe import locate
    from specserve.serve.detached.registry import names

    if request.profile == "-" or "-" in request.workloads:
        why = "`bench` cannot read from stdin because the run could not be resumed"
        raise UsageError(why, hint="name a file")
    servers = names()

    def file(text: str) -> str:
        return str(Path(text).absolute()) if Path(text).is_file() else text

    def place(text: str) -> str:
        return locate(text)[0] if text in servers else file(text)

    def placed(text: str) -> str:
        name, rest = named(text)
        return place(rest) if name is None else f"{name}={place(rest)}"

    assert request.profile is not None
    return replace(
        request,
        profile=place(request.profile),
        workloads=tuple(map(file, request.workloads)),
        others=tuple(map(placed, request.others)),
    )


def named(text: str) -> tuple[str | None, str]:
    """Return label and place of `[LABEL=]PROFILE|URL|NAME`; a file with a `=` needs no label."""
    match = None if Path(text).is_file() else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def points_of(
    request: BenchRequest,
    profile: Profile | None,
    *,
    defaults: tuple[tuple[str, ...], tuple[int, ...]],
) -> tuple[Point, ...]:
    """Return what is measured: what options say; without any, what is promised.

    `defaults`: workloads and concurrencies. Raises UsageError for what is no list of numbers.
    """
    workloads = tuple(sources(request.workloads)) or defaults[0]
    temperatures = numbers(request.temperature, "--temperature", least=0.0, most=2.0) or (0.0,)
    given = whole_numbers(request.concurrency, "--concurrency", least=1, most=4096)
    loads = given or ((1,) if request.quick else defaults[1])
    if not (request.workloads or given or request.temperature or request.quick):
        promised = [
            Point(
                item.workload or workloads[0],
                temperatures[0] if item.temperature is None else item.temperature,
                item.concurrency or loads[0],
            )
            for item in (profile.expect if profile is not None else ())
        ]
        if promised:
            return tuple(dict.fromkeys(promised))
    return tuple(itertools.starmap(Point, itertools.product(workloads, temperatures, loads)))


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """Return how many prompts each workload has. Raises UsageError, FactError if it is none."""
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = len(load(sources.get(name, name), limit=limit).prompts)
        except UsageError as error:
            if name not in sources:
                hint = f"`-w {name}.jsonl` gives its prompts, `-w chat` measures others"
                error.hint = f"`expect` names it: {hint}"
            raise
    return found


def sources(workloads: Sequence[str]) -> dict[str, str]:
    """Return what each is loaded from, by its name. Raises UsageError for a name twice."""
    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are named `{name}`", hint="rename one of the files")
    return found


def is_url(text: str) -> bool:
    """Return whether it can only be the address of a server."""
    address = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?"
    return "://" in text or bool(re.fullmatch(address, text))


def _variants(
    request: BenchRequest, *, starts: bool, notices: Notices
) -> tuple[Profile | None, tuple[Variant, ...]]:
    """Return the main profile, None if it is a URL, and all variants, the baseline first."""
    from specserve.profile.load import load_profile
    from specserve.serve.detached.launch import room_beside

    def planned(
        path: str,
        name: str | None,
        *settings: str,
        check: bool = True,
        baseline: bool = False,
        alternative: str | None = None,
    ) -> Variant:
        return plan_variant(
            path,
            name,
            settings,
            check=check,
            baseline=baseline,
            alternative=alternative,
            starts=starts,
            notices=notices,
        )

    assert request.profile is not None
    profile, found = None, list[Variant]()
    if is_url(request.profile):
        given = {"--set": request.settings, "--alternative": request.alternatives}
        refuse_given(given, command="bench")
        found.append(_at_url(request.profile, None))
    else:
        profile = load_profile(request.profile, settings=request.settings)
        names, speculates = _alternatives(profile, request.alternatives), profile.speculation
        # if the profile passes its check, so does the baseline: each finding is shown once
        check = speculates is None and not names
        settings = request.settings
        found.append(planned(request.profile, BASELINE, *settings, check=check, baseline=True))
        if speculates is not None:
            found.append(planned(request.profile, PROFILE, *settings))
        for name in names:
            found.append(planned(request.profile, name, *settings, alternative=name))
        if starts and found[0].plan is not None:
            room_beside(profile, found[0].plan, name=None, notices=notices)
    for text in request.others:
        own_name, place = named(text)
        found.append(_at_url(place, own_name) if is_url(place) else planned(place, own_name))
    return profile, checked(found)


def _at_url(url: str, name: str | None) -> Variant:
    """Return a server that runs; its key is that of the detached server there, or vLLM's own."""
    from specserve.serve.detached import registry
    from specserve.serve.requests import endpoint

    root = endpoint(url).root
    records = (registry.read(each) for each in registry.names())
    keys = [each.api_key_env for each in records if each is not None and each.url == root]
    key = next(filter(None, keys), "VLLM_API_KEY")
    is_there = bool(os.environ.get(key))
    return Variant(
        name or root.partition("://")[2], url=root, api_key_env=key if is_there else None
    )


def _alternatives(profile: Profile, wanted: Sequence[str] | None) -> Sequence[str]:
    names = dict.fromkeys(profile.alternatives if wanted is None else wanted)
    for name in names:
        if name not in profile.alternatives and name != BASELINE:
            known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
            raise UsageError(f"`{profile.file}` has no alternative `{name}`: it has {known}")
    return [name for name in names if name != BASELINE]


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a block: a prompt, and which copy of it."""

    prompt: Prompt
    copy: int = 1

    @property
    def id(self) -> str:
        """As the records have it: a prompt whose own id has a `#` always gets its copy's number."""
        is_plain = self.copy == 1 and "#" not in self.prompt.id
        return self.prompt.id if is_plain else f"{self.prompt.id}#{self.copy}"


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that every variant is sent, one variant right after another."""

    number: int
    point: Point
    items: tuple[Item, ...]
    seed: int
    """Of sampling: the same for all variants."""


def blocks(
    points: Sequence[Point],
    workloads: Mapping[str, Workload],
    *,
    count: int,
    launch: int,
    place: int = 0,
) -> tuple[Block, ...]:
    """Return one round of a launch: `count` blocks of each point, in order. `place`: its number.

    One of every point in an order of its own, and so on, so that a drift of the machine falls on
    all alike, and so that all have as many when the time is up.
    """
    rng = seeded(f"order {launch} {place}")
    dealt = {
        point: deal(workloads[point.workload].prompts, point, count=count, key=f"{launch} {place}")
        for point in points
    }
    found: list[Block] = []
    for index in range(count):
        for point in rng.sample(points, len(points)):
            number = place * count * len(points) + len(found)
            found.append(Block(number, point, dealt[point][index], rng.randrange(2**31)))
    return tuple(found)


def deal(
    prompts: Sequence[Prompt], point: Point, *, count: int, key: str = ""
) -> list[tuple[Item, ...]]:
    """Return the requests of a point's blocks: every prompt equally often, as the load needs."""
    rng = seeded(f"deal {point} {key}")
    turns = max(1, math.ceil(count * PER_SLOT * point.concurrency / len(prompts)))
    line = [prompt for _ in range(turns) for prompt in rng.sample(prompts, len(prompts))]
    bounds = [len(line) * place // count for place in range(count + 1)]
    return [numbered(line[low:high]) for low, high in itertools.pairwise(bounds)]


def numbered(prompts: Sequence[Prompt]) -> tuple[Item, ...]:
    """Return the requests of these prompts, each with the number of its copy."""
    seen: Counter[str] = Counter()
    items = []
    for prompt in prompts:
        seen[prompt.id] += 1
        items.append(Item(prompt, seen[prompt.id]))
    return tuple(items)


def seeded(text: str) -> random.Random:
    """Return the same draws for the same text, on every machine."""
    return random.Random(text)  # noqa: S311  # an order, no secret


def variant_order(block: Block, variants: Sequence[str]) -> list[str]:
    """Return the variants of a block in an order drawn from its seed."""
    return seeded(f"{block.seed} variants").sample(variants, len(variants))
