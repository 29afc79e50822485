"""What the command line of a benchmark asks for, as arms, points, sessions and a directory. Starts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.errors import CheckFailed, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm, Fit
    from specserve.measure.bench.result import Point
    from specserve.measure.bench.run import Wish
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.profile.schema import Profile

_QUICK = {"prompts": 18, "max_tokens": 48, "blocks": 6}
_BLOCKS, _CPU_TOKENS, BUDGET = 8, 64, "30m"
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says, as `run.json` keeps it."""

    profile: str | None = None
    quick: bool = False
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    request_rate: str | None = None
    temperature: str | None = None
    alternatives: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    blocks: int | None = None
    restarts: int | None = None
    budget: str | None = None
    max_tokens: int | None = None
    prompts: int | None = None
    prefix_cache: str = "profile"
    seed: int = 0
    ignore_eos: bool = False
    one_at_a_time: bool = False
    gpu_hour_price: float | None = None
    include_prompts: bool = False
    settings: tuple[str, ...] = ()
    devices: str | None = None
    api_key_env: str | None = None
    check: bool = True
    locked: bool = False
    use_lock: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be run."""

    asked: Asked
    profile: Profile | None
    wish: Wish
    fit: Fit
    promised_at: tuple[Point, ...]
    launches: int
    prompts: Mapping[str, int]
    """How many each workload has."""

    @property
    def name(self) -> str:
        """Of the benchmark."""
        return self.profile.name if self.profile is not None else self.wish.arms[0].name


def obstacle(asked: Asked) -> str | None:
    """What would keep the same command from starting on this machine, in one clause."""
    try:
        prepared(asked)
    except CheckFailed as error:
        return f"{error.message}: {error.findings[0].message}" if error.findings else error.message
    except SpecserveError as error:
        return error.message
    return None


def prepared(asked: Asked, *, starts: bool = True, at_once: int | None = None) -> Prepared:
    """Arms, points and sessions. `at_once`: as many arms as a run that is resumed had at a time."""
    from specserve.cli.bencharms import arms_of
    from specserve.cli.benchpoints import points_of, prompts_of, sources
    from specserve.cli.durations import seconds
    from specserve.measure.bench.arms import fit, sessions
    from specserve.measure.bench.run import Wish
    from specserve.measure.bench.schedule import Sizes

    profile, arms = arms_of(asked, starts=starts)
    room = fit(arms)
    if asked.one_at_a_time or at_once is not None:
        room = dataclasses.replace(room, at_once=1 if at_once is None else at_once)
    platform = next((arm.plan.platform for arm in arms if arm.plan is not None), "cuda")
    points, promised_at = points_of(asked, profile, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    launches = asked.restarts or (1 if room.at_once >= len(arms) or asked.quick else 2)
    budget_s = seconds(asked.budget or BUDGET, option="--budget", least_s=5.0)
    quick = _QUICK if asked.quick else {}
    tokens = asked.max_tokens or quick.get("max_tokens") or (_CPU_TOKENS if platform == "cpu" else None)
    wish = Wish(
        arms=arms,
        sessions=sessions(arms, launches=launches, at_once=room.at_once, slots=room.slots),
        points=points,
        sources=sources(asked.workloads),
        sizes=Sizes(asked.blocks or quick.get("blocks") or _BLOCKS, asked.seed),
        max_tokens=tokens,
        limit=asked.prompts or quick.get("prompts"),
        ignore_eos=asked.ignore_eos,
        budget_s=budget_s,
        keeps_texts=asked.include_prompts,
    )
    prompts = prompts_of((point.workload for point in points), wish.sources, limit=wish.limit)
    return Prepared(asked, profile, wish, room, promised_at, launches, prompts)


def with_places(asked: Asked) -> Asked:
    """With absolute names of files, and the URLs of detached servers: the run may be resumed from elsewhere.

    Raises UsageError for stdin.
    """
    from specserve.serve.detached.registry import find_server, names

    if asked.profile == "-" or "-" in asked.workloads:
        raise UsageError("a benchmark is not read from stdin: it could not be resumed", hint="name a file")

    servers = names()

    def placed(text: str) -> str:
        name, equals, rest = text.rpartition("=")
        path = Path(rest)
        if path.is_file():
            return f"{name}{equals}{path.absolute()}"
        return f"{name}{equals}{find_server(None, rest, None)[0]}" if rest in servers else text

    assert asked.profile is not None
    return dataclasses.replace(
        asked,
        profile=placed(asked.profile),
        workloads=tuple(
            str(Path(each).absolute()) if Path(each).is_file() else each for each in asked.workloads
        ),
        others=tuple(map(placed, asked.others)),
    )


def new_directory(ready: Prepared, output: str | None) -> RunDirectory:
    from specserve.measure.bench.arms import environment, host, versions
    from specserve.measure.bench.rundir import create, default_place

    marks = [arm.plan.fingerprint for arm in ready.wish.arms if arm.plan is not None]
    platform = next((arm.plan.platform for arm in ready.wish.arms if arm.plan is not None), None)
    path = Path(output) if output is not None else default_place(ready.name, marks)
    return create(
        path,
        {
            "name": ready.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": dataclasses.asdict(ready.asked),
            "at_once": ready.fit.at_once,
            "arms": [_arm_json(arm) for arm in ready.wish.arms],
            "sessions": [dataclasses.asdict(session) for session in ready.wish.sessions],
            "environment": environment(),
            "versions": versions(),
            "host": host(platform_of_arms=platform),
            "spent_s": 0.0,
        },
    )


def _arm_json(arm: Arm) -> dict[str, Any]:
    """An arm with its exact launch; a key is the name of its variable."""
    if arm.plan is None:
        return {"name": arm.name, "url": arm.url}
    from specserve.plan.launchplan import as_json

    return {
        "name": arm.name,
        "fingerprint": arm.plan.fingerprint,
        "launch": as_json(arm.plan),
        "local_models": list(arm.local_models),
    }
