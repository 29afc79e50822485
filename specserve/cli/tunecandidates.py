"""The candidates of a tune: ideas planned as they are measured, and what the rules object to in the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specserve.cli.tuneideas import Idea, situation, without_k
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.cli.tuneprepare import Asked
    from specserve.measure.bench.arms import Arm
    from specserve.measure.tune.plan import Candidate
    from specserve.measure.tune.result import Choice
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

_MOST_TOKENS = 8
_DETAILED = "engine.per_request_spec_decode_metrics=detailed"


def arm(
    path: str,
    asked: Asked,
    *,
    name: str,
    settings: Sequence[str] = (),
    baseline: bool = False,
    starts: bool = True,
) -> tuple[Arm, Profile]:
    """One planned server, and the profile that it serves, at its lock; `starts`: by the vLLM that is here.

    Raises ProfileError, UsageError, FactError.
    """
    from specserve.checks.prepare import prepare
    from specserve.measure.bench.arms import Arm, memory_bytes
    from specserve.profile.schema import world_size

    profile, plan = prepare(
        path,
        settings=(*asked.settings, *settings, "server.host=127.0.0.1"),
        port=0,
        devices=asked.devices,
        alternative=None if settings else asked.alternative,
        baseline=baseline,
        check=False,
        starts=starts,
        use_lock=asked.use_lock,
        notices=StderrNotices(),
    )
    named = profile.hardware.devices if profile.hardware else None
    planned = Arm(
        name=name,
        plan=plan,
        is_baseline=baseline,
        model=profile.target.model,
        api_key_env=plan.api_key_env,
        ranks=world_size(profile),
        devices=tuple(map(str, named)) if named else None,
        memory_bytes=memory_bytes(profile, plan) if plan.platform == "cpu" else None,
    )
    return planned, profile


def _mark(profile: Profile) -> str:
    """The fingerprint of a profile without its K."""
    from specserve.profile.fingerprint import fingerprint

    assert profile.speculation is not None
    bare = replace(profile.speculation, keys=without_k(profile.speculation.keys))
    return fingerprint(replace(profile, speculation=bare))


def candidates(
    profile: Profile,
    asked: Asked,
    wanted: Sequence[Idea],
    *,
    loads: Sequence[int],
    plan: LaunchPlan,
    starts: bool,
) -> tuple[list[Candidate], list[tuple[str, str, str]]]:
    """Those that can be launched, with their K_max and ladder; and what the rules object to in the others.

    `plan`: of the profile itself, for vLLM's version and the platform.
    """
    found: list[Candidate] = []
    left_out: list[tuple[str, str, str]] = []
    for idea in wanted:
        reason = _objection(asked, idea, starts=starts)
        if reason is None:
            found += _planned(profile, asked, idea, loads=loads, plan=plan, starts=starts)
        elif idea.is_own:
            raise UsageError(reason, hint="`--no-check` measures it all the same")
        else:
            left_out.append((idea.name, str(idea.keys["method"]), reason))
    return found, left_out


def _planned(
    profile: Profile, asked: Asked, idea: Idea, *, loads: Sequence[int], plan: LaunchPlan, starts: bool
) -> list[Candidate]:
    from specserve.cli.tuneprepare import most_requests
    from specserve.measure.tune.plan import Candidate, ladder_of, small_tokens

    assert asked.profile is not None
    most = most_tokens(asked, idea)
    there = situation(profile, idea.keys, plan=plan, env=idea.env)
    env = _env(idea.env)
    rungs, reason = ladder_of(there, loads=loads, most_tokens=most, most_requests=most_requests(profile))
    keys = {**without_k(idea.keys), "num_speculative_tokens": most}
    launched = {**keys, "num_speculative_tokens_per_batch_size": _ranges(rungs)} if rungs else keys
    settings = [_as_setting(launched), _DETAILED, *env]
    first, served = arm(asked.profile, asked, name=idea.name, settings=settings, starts=starts)
    whole = Candidate(
        name=idea.name,
        arm=first,
        keys=keys,
        env=idea.env,
        mark=_mark(served),
        runner=there.runner,
        most_tokens=most,
        rungs=rungs,
        why_no_ladder=reason,
        is_own=idea.is_own,
    )
    if rungs or most < 3:
        return [whole]
    few = {**keys, "num_speculative_tokens": small_tokens(most)}
    name = f"{idea.name}-k{small_tokens(most)}"
    second, _ = arm(
        asked.profile, asked, name=name, settings=[_as_setting(few), _DETAILED, *env], starts=starts
    )
    return [whole, replace(whole, name=name, arm=second, most_tokens=small_tokens(most), small=True)]


def _ranges(rungs: Mapping[int, int]) -> list[list[int]]:
    from specserve.measure.tune.schedule import as_ranges

    return as_ranges(rungs)


def most_tokens(asked: Asked, idea: Idea) -> int:
    """K_max: of the run that is gone on with; what was asked for; else 8, or the block of a head that drafts in blocks.

    A run that measured less than the profile's own K is none to go on with.
    """
    own = idea.keys.get("num_speculative_tokens")
    own = int(own) if isinstance(own, int | str) and str(own).isdigit() else 0
    if idea.most_tokens is not None and idea.most_tokens >= own:
        return idea.most_tokens
    if idea.keys["method"] in ("dflash", "dspark", "mtp") or idea.keys.get("parallel_drafting"):
        return min(asked.most_tokens or own or 1, own or 1)
    return asked.most_tokens or max(own, _MOST_TOKENS)


def _objection(asked: Asked, idea: Idea, *, starts: bool) -> str | None:
    """The first error of the rules about a candidate as it would be served; None without one.

    The profile's own was examined with its models before; `starts`: so are those of the others.
    """
    from specserve.checks.run import examined
    from specserve.diagnostics import Severity
    from specserve.profile.load import load_profile

    if not asked.check:
        return None
    assert asked.profile is not None
    keys = {**without_k(idea.keys), "num_speculative_tokens": most_tokens(asked, idea)}
    settings = (*asked.settings, _as_setting(keys), *_env(idea.env))
    try:
        profile = load_profile(asked.profile, settings=settings)
    except SpecserveError as error:
        return error.message
    findings, _ = examined(profile)
    errors = [
        finding
        for finding in findings
        if finding.severity is Severity.ERROR and not finding.span.path.startswith("alternatives.")
    ]
    if errors:
        return f"{errors[0].code}: {errors[0].message}"
    return _preflight(asked, settings) if starts and not idea.is_own else None


def _preflight(asked: Asked, settings: Sequence[str]) -> str | None:
    """What is wrong with models, memory and machine; None where nothing is."""
    from specserve.checks.preflight import preflight

    try:
        preflight(
            asked.profile,
            settings=settings,
            devices=asked.devices,
            no_lock=not asked.use_lock,
            notices=StderrNotices(),
        )
    except CheckFailed as error:
        first = error.findings[0] if error.findings else None
        return f"{first.code}: {first.message}" if first is not None else error.message
    return None


def _as_setting(keys: Mapping[str, Any]) -> str:
    """A block as `--set` takes it."""
    from specserve.profile.fingerprint import jsonable

    return f"speculation={json.dumps(jsonable(keys))}"


def tuned(path: str, asked: Asked, choice: Choice, *, name: str) -> Arm:
    """The chosen server, as the profile would serve it."""
    assert choice.speculation is not None
    return arm(path, asked, name=name, settings=[_as_setting(choice.speculation), *_env(choice.env)])[0]


def _env(variables: Mapping[str, str]) -> list[str]:
    """Variables as `--set` takes them."""
    return [f"env.{name}={json.dumps(value)}" for name, value in variables.items()]
