"""A benchmark before it starts: its options, variants, points and sessions, and the blocks that are sent."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices, Severity
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import (
    BASELINE,
    PROFILE,
    Fit,
    Session,
    Variant,
    checked,
    fit,
    plan_arm,
    sessions,
)
from specserve.measure.values import numbers, refuse_given, seconds, whole_numbers
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
_LEAST_AT_RATE = 10


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
    blocks: int | None = None
    launches: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    settings: tuple[str, ...] = ()
    api_key_env: str | None = None
    check: bool = True


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    arms: tuple[Variant, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    blocks: int
    """Of each point in each launch."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    """Prompts of a workload, at most."""
    budget_s: float | None = None
    """Of measuring; launches come on top. Blocks that would begin later are left out."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    """None if the first variant is a URL."""
    promised_at: tuple[Point, ...] = ()
    """The point of each of the profile's promises."""
    fit: Fit = field(default_factory=lambda: Fit(1, ""))
    prompts: Mapping[str, int] = field(default_factory=dict)
    """How many each workload has."""

    @property
    def name(self) -> str:
        """The profile's, or the first variant's."""
        return self.profile.name if self.profile is not None else self.arms[0].name

    @property
    def own_arm(self) -> str:
        """The variant that the profile itself is: if it does not speculate, the one without speculation."""
        if self.profile is None:
            return self.arms[0].name
        return PROFILE if self.profile.speculation is not None else BASELINE

    @property
    def launches(self) -> int:
        """Launches of each variant."""
        return sum(self.arms[-1].name in each.arms for each in self.sessions)

    def launched(self, *names: str) -> int:
        """Returns how many of these variants are started for the benchmark."""
        return sum(arm.name in names and arm.plan is not None for arm in self.arms)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any variant is started here."""
        return next((arm.plan.platform for arm in self.arms if arm.plan is not None), None)


def plan_bench(
    request: BenchRequest, *, notices: Notices, starts: bool = True, at_once: int | None = None
) -> BenchPlan:
    """Returns the variants, points and sessions. `starts`: models, memory and machine are checked, too.

    `at_once`: as many variants as a run that is resumed had at the same time. Raises ProfileError, CheckFailed,
    UsageError.
    """
    profile, arms = _arms(request, starts=starts, notices=notices)
    room = fit(arms)
    if at_once is not None:
        room = room._replace(at_once=at_once)
    platform = next((arm.plan.platform for arm in arms if arm.plan is not None), "cuda")
    wanted, promised_at = points_of(request, profile, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    if request.launches and not any(arm.plan is not None for arm in arms):
        raise UsageError("`--launches` cannot start servers again that bench did not start")
    # one server at a time: A B B A, so that a steady drift of the machine cancels
    launches = request.launches or (1 if room.at_once > 1 or request.quick else 2)
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    usual_tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        arms=arms,
        sessions=sessions(arms, launches=launches, at_once=room.at_once, slots=room.slots),
        points=wanted,
        blocks=request.blocks or (_QUICK_BLOCKS if request.quick else _BLOCKS),
        sources=files,
        max_tokens=request.max_tokens or usual_tokens,
        limit=limit,
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=5.0),
        request=request,
        profile=profile,
        promised_at=promised_at,
        fit=room,
        prompts=prompts_of((point.workload for point in wanted), files, limit=limit),
    )


def obstacle(request: BenchRequest, *, notices: Notices) -> str | None:
    """Returns what would keep the same command from starting on this machine, in one clause."""
    try:
        plan_bench(request, notices=notices)
    except CheckFailed as error:
        first = next((item for item in error.findings if item.severity is Severity.ERROR), None)
        return f"{error.message}: {first.message}" if first else error.message
    except SpecserveError as error:
        return error.message
    return None


def with_places(request: BenchRequest) -> BenchRequest:
    """Returns it with absolute names of files, and URLs of detached servers: the run may be resumed from elsewhere.

    Raises UsageError for stdin.
    """
    from specserve.serve.detached.observe import locate
    from specserve.serve.detached.registry import names

    if request.profile == "-" or "-" in request.workloads:
        raise UsageError(
            "`bench` cannot read from stdin because the run could not be resumed", hint="name a file"
        )
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
    """Returns label and place of `[LABEL=]PROFILE|URL|NAME`; a file whose name has a `=` needs no label."""
    match = None if Path(text).is_file() else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def points_of(
    request: BenchRequest, profile: Profile | None, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """Returns what is measured, and the point of each promise.

    Options win; without any, what is promised is measured. Raises UsageError for what is not a list of numbers.
    """
    workloads, loads = defaults
    named = tuple(sources(request.workloads)) or workloads
    temperatures = numbers(request.temperature, "--temperature", least=0.0, most=2.0) or (0.0,)
    rates = numbers(request.request_rate, "--request-rate", least=0.001, most=100_000.0)
    given = whole_numbers(request.concurrency, "--concurrency", least=1, most=4096)
    concurrency = given or (() if rates else ((1,) if request.quick else loads))
    promised = tuple(
        Point(
            item.workload or named[0],
            temperatures[0] if item.temperature is None else item.temperature,
            item.concurrency or (concurrency or (1,))[0],
        )
        for item in (profile.expect if profile is not None else ())
    )
    is_open = not (request.workloads or given or rates or request.temperature or request.quick)
    if promised and is_open:
        return tuple(dict.fromkeys(promised)), promised
    return points(named, concurrency=concurrency, rates=rates, temperatures=temperatures), promised


def points(
    workloads: Sequence[str],
    *,
    concurrency: Sequence[int],
    rates: Sequence[float],
    temperatures: Sequence[float],
) -> tuple[Point, ...]:
    """Returns every combination."""
    loads = [*((each, None) for each in concurrency), *((None, each) for each in rates)]
    every = itertools.product(workloads, temperatures, loads)
    return tuple(Point(workload, temperature, *load) for workload, temperature, load in every)


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """Returns how many prompts each workload has. Raises UsageError, FactError for one that is none."""
    from specserve.measure.workloads.load import load

    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = len(load(sources.get(name, name), limit=limit).prompts)
        except UsageError as error:
            if name not in sources:
                error.hint = (
                    f"`expect` names it: `-w {name}.jsonl` gives its prompts, `-w chat` measures others"
                )
            raise
    return found


def sources(workloads: Sequence[str]) -> dict[str, str]:
    """Returns what each is loaded from, by its name: that of a file is its stem. Raises UsageError for a name twice."""
    from specserve.measure.workloads.load import name_of

    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are named `{name}`", hint="rename one of the files")
    return found


def is_url(text: str) -> bool:
    """Returns whether it can only be the address of a server."""
    return "://" in text or bool(re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?", text))


def _arms(
    request: BenchRequest, *, starts: bool, notices: Notices
) -> tuple[Profile | None, tuple[Variant, ...]]:
    """Returns the main profile, None if it is a URL, and all variants, the one to compare with first."""
    from specserve.serve.requests import endpoint

    def planned(
        path: str,
        name: str | None,
        *settings: str,
        check: bool = request.check,
        baseline: bool = False,
        alternative: str | None = None,
    ) -> Variant:
        return plan_arm(path, name, settings, check=check, baseline=baseline, alternative=alternative,
                        starts=starts, notices=notices)  # fmt: skip

    def at_url(url: str, name: str | None) -> Variant:
        root = endpoint(url, api_key_env=request.api_key_env).root
        return Variant(name or root.partition("://")[2], url=root, api_key_env=request.api_key_env)

    assert request.profile is not None
    profile, found = None, []
    if is_url(request.profile):
        refuse_given({"--set": request.settings, "--alternative": request.alternatives}, command="bench")
        found.append(at_url(request.profile, None))
    else:
        from specserve.profile.load import load_profile

        profile = load_profile(request.profile, settings=request.settings)
        names, speculates = _alternatives(profile, request.alternatives), profile.speculation is not None
        # if the profile passes its check, so does the same without speculation: each finding is shown once
        check = request.check and not speculates and not names
        found.append(planned(request.profile, BASELINE, *request.settings, check=check, baseline=True))
        if speculates:
            found.append(planned(request.profile, PROFILE, *request.settings))
        found += [planned(request.profile, name, *request.settings, alternative=name) for name in names]
        if starts and request.check and found[0].plan is not None:
            from specserve.serve.detached.launch import room_beside

            room_beside(profile, found[0].plan, name=None, notices=notices)
    for text in request.others:
        own_name, place = named(text)
        found.append((at_url if is_url(place) else planned)(place, own_name))
    return profile, checked(found)


def _alternatives(profile: Profile, wanted: Sequence[str] | None) -> Sequence[str]:
    if wanted is None:
        return tuple(profile.alternatives)
    if tuple(wanted) == ("none",):
        return ()
    for name in wanted:
        if name not in profile.alternatives:
            known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
            raise UsageError(f"`{profile.file}` has no alternative `{name}`: it has {known}")
    return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True, slots=True)
class Item:
    """One request of a block: a prompt, and which copy of it."""

    prompt: Prompt
    copy: int = 1

    @property
    def id(self) -> str:
        """As the records have it: a prompt whose own id has a `#` always gets the number of its copy."""
        is_plain = self.copy == 1 and "#" not in self.prompt.id
        return self.prompt.id if is_plain else f"{self.prompt.id}#{self.copy}"


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that every variant is sent, one variant right after another."""

    number: int
    point: Point
    items: tuple[Item, ...]
    seed: int
    """Of arrival times and of sampling: the same for all variants."""


def blocks(
    wanted: Sequence[Point], workloads: Mapping[str, Workload], *, count: int, launch: int, first: int = 0
) -> tuple[Block, ...]:
    """Returns `count` blocks of each point in the order in which one launch measures them.

    Each round has one of every point, in an order of its own, so that a drift of the machine falls on all alike, and so
    that what is there when the time is up has the same number of blocks everywhere.
    """
    rng = seeded(f"order {launch}")
    dealt = {
        point: deal(workloads[point.workload].prompts, point, count=count, launch=launch) for point in wanted
    }
    found: list[Block] = []
    for place in range(count):
        for point in rng.sample(wanted, len(wanted)):
            found.append(Block(first + len(found), point, dealt[point][place], rng.randrange(2**31)))
    return tuple(found)


def deal(prompts: Sequence[Prompt], point: Point, *, count: int, launch: int) -> list[tuple[Item, ...]]:
    """Returns the requests of a point's blocks: every prompt equally often, and as often as the load needs.

    Prompts are shuffled again for each round, alike for all variants.
    """
    rng = seeded(f"deal {point} {launch}")
    least = _LEAST_AT_RATE if point.concurrency is None else PER_SLOT * point.concurrency
    rounds = max(1, math.ceil(count * least / len(prompts)))
    line = [prompt for _ in range(rounds) for prompt in rng.sample(prompts, len(prompts))]
    bounds = [len(line) * place // count for place in range(count + 1)]
    return [numbered(line[low:high]) for low, high in itertools.pairwise(bounds)]


def numbered(prompts: Sequence[Prompt]) -> tuple[Item, ...]:
    """Returns the requests of these prompts, each with the number of its copy."""
    seen: Counter[str] = Counter()
    items = []
    for prompt in prompts:
        seen[prompt.id] += 1
        items.append(Item(prompt, seen[prompt.id]))
    return tuple(items)


def seeded(text: str) -> random.Random:
    """Returns the same draws for the same text, on every machine."""
    return random.Random(text)  # noqa: S311  # an order, no secret


def arm_order(block: Block, arms: Sequence[str]) -> list[str]:
    """Returns the variants of a block in an order drawn from its seed."""
    return seeded(f"{block.seed} arms").sample(arms, len(arms))
