"""A benchmark before it starts: its arms checked and planned, its points, sessions and directory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.bench.request import BenchRequest
from specserve.measure.values import refuse_given

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm, Fit
    from specserve.measure.bench.result import Point
    from specserve.measure.bench.run import Wish
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile


_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)


def arms_of(asked: BenchRequest, *, starts: bool, notices: Notices) -> tuple[Profile | None, tuple[Arm, ...]]:
    """The main profile, None where a URL is in its place, and all arms, the one to compare with first.

    `starts`: models, memory and machine are checked too. Raises ProfileError, CheckFailed, UsageError.
    """
    from specserve.measure.bench.arms import PROFILE, checked

    assert asked.profile is not None
    main: Profile | None = None
    if is_url(asked.profile):
        _refuse_profile_options(asked)
        arms = [_at_url(None, asked.profile, asked)]
    else:
        main, arms = _own(asked, starts=starts, notices=notices)
    for text in asked.others:
        match = _NAMED.fullmatch(text)
        name, place = (match[1], match[2]) if match else (None, text)
        if is_url(place):
            arms.append(_at_url(name, place, asked))
        else:
            arms.append(_planned(place, asked, name=name, starts=starts, notices=notices)[1])
    if main is not None and all(arm.name != PROFILE and not arm.is_baseline for arm in arms):
        raise UsageError(f"`{asked.profile}` is no arm")
    return main, checked(arms)


def is_url(text: str) -> bool:
    """Whether it can only be the address of a server."""
    return "://" in text or bool(re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?", text))


def _own(asked: BenchRequest, *, starts: bool, notices: Notices) -> tuple[Profile, list[Arm]]:
    """The profile with and without speculation, and its alternatives."""
    from specserve.measure.bench.arms import BASELINE, PROFILE
    from specserve.profile.load import load_profile

    assert asked.profile is not None
    loaded = load_profile(asked.profile, settings=asked.settings)
    names = _alternatives(loaded, asked.alternatives)
    # where the profile passes its check, so does the same without speculation: what is found is told once
    is_checked = asked.check and loaded.speculation is None and not names
    plain = dataclasses.replace(asked, check=is_checked)
    found = [_planned(asked.profile, plain, name=BASELINE, baseline=True, starts=starts, notices=notices)[1]]
    if loaded.speculation is not None:
        found.append(_planned(asked.profile, asked, name=PROFILE, starts=starts, notices=notices)[1])
    for name in names:
        found.append(
            _planned(asked.profile, asked, name=name, alternative=name, starts=starts, notices=notices)[1]
        )
    if starts and asked.check and found[0].plan is not None:
        from specserve.serve.detached.observe import room_beside

        room_beside(loaded, found[0].plan, name=None, notices=notices)
    return loaded, found


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
    path: str,
    asked: BenchRequest,
    *,
    name: str | None,
    starts: bool,
    notices: Notices,
    baseline: bool = False,
    alternative: str | None = None,
) -> tuple[Profile, Arm]:
    from specserve.checks.preflight import cleared
    from specserve.checks.prepare import prepare
    from specserve.measure.bench.arms import Arm
    from specserve.profile.schema import world_size

    is_other = path != asked.profile
    settings = () if is_other else asked.settings
    options = {
        # nobody else is to reach a server that is being measured
        "settings": (*settings, "server.host=127.0.0.1"),
        "port": 0,
        "devices": asked.devices,
        "alternative": alternative,
        "baseline": baseline,
        "use_lock": asked.use_lock,
        "locked": asked.locked,
        "notices": notices,
    }
    if starts:
        profile, plan = cleared(path, check=asked.check, **options)  # type: ignore[arg-type]
    else:
        profile, plan = prepare(path, check=asked.check, starts=False, **options)  # type: ignore[arg-type]
    target = profile.target
    return profile, Arm(
        name=name or profile.name,
        plan=plan,
        is_baseline=baseline,
        model=target.model,
        api_key_env=plan.api_key_env,
        ranks=world_size(profile),
        devices=_devices(profile),
        memory_bytes=_memory(profile, plan),
        local_models=_local_models(profile),
    )


def _devices(profile: Profile) -> tuple[str, ...] | None:
    named = profile.hardware.devices if profile.hardware else None
    return tuple(map(str, named)) if named else None


def _memory(profile: Profile, plan: LaunchPlan) -> int | None:
    from specserve.measure.bench.arms import memory_bytes

    return memory_bytes(profile, plan) if plan.platform == "cpu" else None


def _local_models(profile: Profile) -> tuple[str, ...]:
    """Those of target and draft that vLLM would load from a folder here."""
    from specserve.models.read import local_path

    draft = profile.speculation.keys.get("model") if profile.speculation else None
    named = [profile.target.model, *([str(draft)] if draft else [])]
    return tuple(model for model in named if local_path(model) is not None)


def _at_url(name: str | None, url: str, asked: BenchRequest) -> Arm:
    from specserve.measure.bench.arms import Arm
    from specserve.serve.requests import endpoint

    root = endpoint(url, api_key_env=asked.api_key_env).root
    return Arm(name or root.partition("://")[2], url=root, api_key_env=asked.api_key_env)


def _refuse_profile_options(asked: BenchRequest) -> None:
    given = {
        "--set": asked.settings,
        "--alternative": asked.alternatives,
        "--devices": asked.devices,
        "--locked": asked.locked,
        "--restarts": asked.restarts,
    }
    refuse_given(given, command="bench")


def refuse_silent(arms: Sequence[Arm]) -> None:
    """Raises TrafficError where a server at a URL does not answer: before a directory is made, or a server started."""
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    for arm in arms:
        if arm.url is not None:
            with Client(endpoint(arm.url, api_key_env=arm.api_key_env)) as client:
                client.models()


_QUICK = {"prompts": 18, "max_tokens": 48, "blocks": 6}
_BLOCKS, _CPU_TOKENS, BUDGET = 8, 64, "30m"
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be run."""

    asked: BenchRequest
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


def obstacle(asked: BenchRequest, *, notices: Notices) -> str | None:
    """What would keep the same command from starting on this machine, in one clause."""
    try:
        prepared(asked, notices=notices)
    except CheckFailed as error:
        return f"{error.message}: {error.findings[0].message}" if error.findings else error.message
    except SpecserveError as error:
        return error.message
    return None


def prepared(
    asked: BenchRequest, *, notices: Notices, starts: bool = True, at_once: int | None = None
) -> Prepared:
    """Arms, points and sessions. `at_once`: as many arms as a run that is resumed had at a time."""
    from specserve.measure.bench.arms import fit, sessions
    from specserve.measure.bench.request import points_of, prompts_of, sources
    from specserve.measure.bench.run import Wish
    from specserve.measure.bench.schedule import Sizes
    from specserve.measure.values import seconds

    profile, arms = arms_of(asked, starts=starts, notices=notices)
    room = fit(arms)
    if at_once is not None:
        room = dataclasses.replace(room, at_once=at_once)
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
