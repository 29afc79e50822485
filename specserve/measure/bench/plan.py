"""A benchmark before it starts: what is asked for, its arms checked and planned, its points and sessions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.bench.arms import BASELINE, PROFILE, Arm, Fit, Session, checked, fit, sessions
from specserve.measure.bench.result import Point
from specserve.measure.bench.schedule import Block, Sizes, points
from specserve.measure.values import numbers, refuse_given, seconds, whole_numbers

if TYPE_CHECKING:
    from specserve.measure.bench.driver import Pass
    from specserve.profile.schema import Profile

BUDGET = "30m"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}
_BLOCKS, _CPU_TOKENS = 8, 64
_QUICK_BLOCKS, _QUICK_PROMPTS, _QUICK_TOKENS = 6, 18, 48


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
    budget: str | None = None
    max_tokens: int | None = None
    settings: tuple[str, ...] = ()
    api_key_env: str | None = None
    check: bool = True


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    arms: tuple[Arm, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    sizes: Sizes
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    """Prompts of a workload, at most."""
    budget_s: float | None = None
    """Of measuring; launches come on top. Blocks that would begin later are left out."""
    still: Callable[[Block, Sequence[Pass]], Collection[str]] | None = None
    """Which arms a block is still wanted of, by what is there, asked when its turn comes; None: of all."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    """None if the first arm is a URL."""
    promised_at: tuple[Point, ...] = ()
    """The point of each of the profile's promises."""
    fit: Fit = field(default_factory=lambda: Fit(1, ""))
    prompts: Mapping[str, int] = field(default_factory=dict)
    """How many each workload has."""

    @property
    def name(self) -> str:
        """The profile's, or the first arm's."""
        return self.profile.name if self.profile is not None else self.arms[0].name

    @property
    def launches(self) -> int:
        """Launches of each arm."""
        return 1 + max((each.launch for each in self.sessions), default=0)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any arm is started here."""
        return next((arm.plan.platform for arm in self.arms if arm.plan is not None), None)


def plan_bench(
    request: BenchRequest, *, notices: Notices, starts: bool = True, at_once: int | None = None
) -> BenchPlan:
    """Arms, points and sessions. `starts`: models, memory and machine are checked, too.

    `at_once`: as many arms as a run that is resumed had at the same time. Raises ProfileError, CheckFailed, UsageError.
    """
    profile, arms = _arms(request, starts=starts, notices=notices)
    room = fit(arms)
    if at_once is not None:
        room = replace(room, at_once=at_once)
    platform = next((arm.plan.platform for arm in arms if arm.plan is not None), "cuda")
    wanted, promised_at = points_of(request, profile, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    launches = 1 if room.at_once >= len(arms) or request.quick else 2
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    usual_tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        arms=arms,
        sessions=sessions(arms, launches=launches, at_once=room.at_once, slots=room.slots),
        points=wanted,
        sizes=Sizes(request.blocks or (_QUICK_BLOCKS if request.quick else _BLOCKS)),
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
    """What would keep the same command from starting on this machine, in one clause."""
    try:
        plan_bench(request, notices=notices)
    except CheckFailed as error:
        return f"{error.message}: {error.findings[0].message}" if error.findings else error.message
    except SpecserveError as error:
        return error.message
    return None


def with_places(request: BenchRequest) -> BenchRequest:
    """With absolute names of files, and the URLs of detached servers: the run may be resumed from elsewhere.

    Raises UsageError for stdin.
    """
    from specserve.serve.detached.registry import find_server, names

    if request.profile == "-" or "-" in request.workloads:
        raise UsageError(
            "`bench` cannot read from stdin because the run could not be resumed", hint="name a file"
        )
    servers = names()

    def placed(text: str) -> str:
        name, equals, rest = text.rpartition("=")
        if Path(rest).is_file():
            return f"{name}{equals}{Path(rest).absolute()}"
        return f"{name}{equals}{find_server(None, rest, None)[0]}" if rest in servers else text

    assert request.profile is not None
    return replace(
        request,
        profile=placed(request.profile),
        workloads=tuple(
            str(Path(each).absolute()) if Path(each).is_file() else each for each in request.workloads
        ),
        others=tuple(map(placed, request.others)),
    )


def points_of(
    request: BenchRequest, profile: Profile | None, *, defaults: tuple[tuple[str, ...], tuple[int, ...]]
) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """What is measured, and the point of each promise. Options win; without any, what is promised is measured.

    Raises UsageError for what is not a list of numbers.
    """
    workloads, loads = defaults
    expect = profile.expect if profile is not None else ()
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
        for item in expect
    )
    is_open = not (request.workloads or given or rates or request.temperature or request.quick)
    if promised and is_open:
        return tuple(dict.fromkeys(promised)), promised
    return points(named, concurrency=concurrency, rates=rates, temperatures=temperatures), promised


def prompts_of(
    names: Iterable[str], sources: Mapping[str, str], *, limit: int | None = None
) -> dict[str, int]:
    """How many prompts each workload has. Raises UsageError, FactError for one that is none: before any launch."""
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
    """What each is loaded from, by its name: that of a file is its stem. Raises UsageError for a name twice."""
    from specserve.measure.workloads.load import name_of

    found: dict[str, str] = {}
    for text in workloads:
        name = name_of(Path(text)) if "/" in text or Path(text).is_file() else text
        if found.setdefault(name, text) != text:
            raise UsageError(f"two workloads are named `{name}`", hint="rename one of the files")
    return found


def _arms(request: BenchRequest, *, starts: bool, notices: Notices) -> tuple[Profile | None, tuple[Arm, ...]]:
    """The main profile, None if it is a URL, and all arms, the one to compare with first."""
    assert request.profile is not None
    main, make = None, partial(_planned, starts=starts, notices=notices)
    if is_url(request.profile):
        given = {"--set": request.settings, "--alternative": request.alternatives}
        refuse_given(given, command="bench")
        arms = [_at_url(None, request.profile, request)]
    else:
        main, arms = _own_arms(request, make)
        if starts and request.check and arms[0].plan is not None:
            from specserve.serve.detached.observe import room_beside

            room_beside(main, arms[0].plan, name=None, notices=notices)
    for text in request.others:
        match = _NAMED.fullmatch(text)
        name, place = (match[1], match[2]) if match else (None, text)
        other = replace(request, profile=place, settings=())
        arms.append(_at_url(name, place, request) if is_url(place) else make(other, name))
    return main, checked(arms)


def is_url(text: str) -> bool:
    """Whether it can only be the address of a server."""
    return "://" in text or bool(re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?", text))


def _own_arms(request: BenchRequest, make: Callable[..., Arm]) -> tuple[Profile, list[Arm]]:
    """The profile with and without speculation, and its alternatives."""
    from specserve.profile.load import load_profile

    assert request.profile is not None
    loaded = load_profile(request.profile, settings=request.settings)
    names = _alternatives(loaded, request.alternatives)
    # if the profile passes its check, so does the same without speculation: each finding is shown once
    speculates = loaded.speculation is not None
    plain = replace(request, check=request.check and not speculates and not names)
    found = [make(plain, BASELINE, baseline=True)]
    if speculates:
        found.append(make(request, PROFILE))
    return loaded, found + [make(request, name, alternative=name) for name in names]


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


def _planned(
    request: BenchRequest,
    name: str | None,
    *,
    starts: bool,
    notices: Notices,
    baseline: bool = False,
    alternative: str | None = None,
) -> Arm:
    from specserve.checks.prepare import cleared
    from specserve.measure.bench.arms import planned_arm
    from specserve.plan.launch import LaunchOptions

    assert request.profile is not None
    options = LaunchOptions(
        # nobody else is to reach a server that is being measured
        settings=(*request.settings, "server.host=127.0.0.1"),
        port=0,
        alternative=alternative,
        baseline=baseline,
        check=request.check,
        starts=starts,
    )
    profile, plan = cleared(request.profile, options, notices=notices)
    return planned_arm(profile, plan, name=name or profile.name, is_baseline=baseline)


def _at_url(name: str | None, url: str, request: BenchRequest) -> Arm:
    from specserve.serve.requests import endpoint

    root = endpoint(url, api_key_env=request.api_key_env).root
    return Arm(name or root.partition("://")[2], url=root, api_key_env=request.api_key_env)
