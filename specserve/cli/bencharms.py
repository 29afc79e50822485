"""The arms of a benchmark from what the command line names: profiles checked and planned, URLs as they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specserve.cli.options import refuse_given
from specserve.errors import UsageError
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.cli.benchprepare import Asked
    from specserve.measure.bench.arms import Arm
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,40})=(.+)", re.S)


def arms_of(asked: Asked, *, starts: bool) -> tuple[Profile | None, tuple[Arm, ...]]:
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
        main, arms = _own(asked, starts=starts)
    for text in asked.others:
        match = _NAMED.fullmatch(text)
        name, place = (match[1], match[2]) if match else (None, text)
        if is_url(place):
            arms.append(_at_url(name, place, asked))
        else:
            arms.append(_planned(place, asked, name=name, starts=starts)[1])
    if main is not None and all(arm.name != PROFILE and not arm.is_baseline for arm in arms):
        raise UsageError(f"`{asked.profile}` is no arm")
    return main, checked(arms)


def is_url(text: str) -> bool:
    """Whether it can only be the address of a server."""
    return "://" in text or bool(re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?", text))


def _own(asked: Asked, *, starts: bool) -> tuple[Profile, list[Arm]]:
    """The profile with and without speculation, and its alternatives."""
    from specserve.measure.bench.arms import BASELINE, PROFILE
    from specserve.profile.load import load_profile

    assert asked.profile is not None
    loaded = load_profile(asked.profile, settings=asked.settings)
    names = _alternatives(loaded, asked.alternatives)
    # where the profile passes its check, so does the same without speculation: what is found is told once
    is_checked = asked.check and loaded.speculation is None and not names
    plain = dataclasses.replace(asked, check=is_checked)
    found = [_planned(asked.profile, plain, name=BASELINE, baseline=True, starts=starts)[1]]
    if loaded.speculation is not None:
        found.append(_planned(asked.profile, asked, name=PROFILE, starts=starts)[1])
    for name in names:
        found.append(_planned(asked.profile, asked, name=name, alternative=name, starts=starts)[1])
    if starts and asked.check and found[0].plan is not None:
        from specserve.serve.detached.observe import room_beside

        room_beside(loaded, found[0].plan, name=None, notices=StderrNotices())
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
    asked: Asked,
    *,
    name: str | None,
    starts: bool,
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
        "notices": StderrNotices(),
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


def _at_url(name: str | None, url: str, asked: Asked) -> Arm:
    from specserve.measure.bench.arms import Arm
    from specserve.serve.requests import endpoint

    root = endpoint(url, api_key_env=asked.api_key_env).root
    return Arm(name or root.partition("://")[2], url=root, api_key_env=asked.api_key_env)


def _refuse_profile_options(asked: Asked) -> None:
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
