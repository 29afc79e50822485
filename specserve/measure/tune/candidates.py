"""What a tune could try, each way planned as it is measured, and why the others are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.tune.schedule import most_requests, situation

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm
    from specserve.measure.tune.plan import Candidate, TuneRequest
    from specserve.measure.tune.result import Choice
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile


_SAMPLED = frozenset({"draft_model", "eagle", "eagle3", "mtp"})
"""Methods whose drafts can be sampled."""
_NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}


@dataclass(frozen=True, slots=True)
class Idea:
    """One way to speculate, before anything is planned."""

    name: str
    keys: Mapping[str, Any]
    is_own: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    """Beside the profile's."""
    most_tokens: int | None = None
    """K_max of a run that is gone on with."""


def ideas(
    profile: Profile, asked: TuneRequest, *, temperatures: Sequence[float], plan: LaunchPlan
) -> list[Idea]:
    """In the order of their use: the profile's own first. `plan`: its own, for vLLM's version and the platform."""
    if profile.speculation is None:
        if not asked.drafts and not asked.methods:
            raise UsageError(
                f"`{profile.file}` does not speculate: there is nothing to tune",
                hint="give it a `speculation` section, or name a draft with `--draft MODEL`",
            )
        found: list[Idea] = []
        own: dict[str, Any] = {"method": "draft_model"}
    else:
        own = dict(profile.speculation.keys)
        found = [Idea(str(own["method"]), own, is_own=True)]
        found += _sampled(own, temperatures=temperatures)
        found += _on_runner(own, asked, profile, plan)
    for model in asked.drafts:
        keys = dict(own) if own.get("method") == "draft_model" else {"method": "draft_model"}
        path = Path(model)
        keys["model"] = str(path.absolute()) if path.is_dir() else model
        keys.pop("revision", None)
        found.append(Idea(f"draft-{path.name.lower()}", keys))
    for method in dict.fromkeys(asked.methods):
        block = _keys_of(method, profile)
        if not any(_is_alike(block, idea.keys) for idea in found):
            found.append(Idea(method, block))
    return _named_apart(found)


def _is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two blocks speculate in the same way, whatever their K."""
    return without_k(one) == without_k(other)


def without_k(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A block without what says how many tokens are drafted."""
    without = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    return {name: value for name, value in keys.items() if name not in without}


def _named_apart(found: Sequence[Idea]) -> list[Idea]:
    """Each under a name of its own: two drafts may be called `final`."""
    names: list[str] = []
    for idea in found:
        name, count = idea.name, 1
        while name in names:
            count += 1
            name = f"{idea.name}-{count}"
        names.append(name)
    return [replace(idea, name=name) for idea, name in zip(found, names, strict=True)]


def _sampled(own: Mapping[str, Any], *, temperatures: Sequence[float]) -> list[Idea]:
    """The other way to sample drafts, where a request is sampled at all."""
    if max(temperatures) <= 0 or own["method"] not in _SAMPLED or own.get("use_heterogeneous_vocab"):
        return []
    now = own.get("draft_sample_method") or "greedy"
    other = "greedy" if now == "probabilistic" else "probabilistic"
    return [Idea(f"{own['method']}-{other}", {**own, "draft_sample_method": other})]


def _on_runner(own: Mapping[str, Any], asked: TuneRequest, profile: Profile, plan: LaunchPlan) -> list[Idea]:
    """The profile's own way on vLLM's other runner, if that was asked for. Raises UsageError where it cannot be."""
    from specserve.vllm.runner import SWITCH

    if asked.runner is None or asked.runner == situation(profile, own, plan=plan).runner:
        return []
    if asked.runner != _other_runner(profile, own, plan):
        why = (
            "the CPU engine has but one" if plan.platform == "cpu" else f"`{own['method']}` cannot run on it"
        )
        raise UsageError(f"there is no runner {asked.runner} to compare with here: {why}")
    env = {SWITCH: "1" if asked.runner == "v2" else "0"}
    return [Idea(f"{own['method']}-{asked.runner}", own, env=env)]


def _other_runner(profile: Profile, keys: Mapping[str, Any], plan: LaunchPlan) -> str | None:
    from specserve.memory.defaults import arguments, other_runner

    if plan.platform == "cpu":
        return None
    return other_runner(plan.vllm, arguments=arguments(profile), speculation=keys, env=profile.env)


def _keys_of(method: str, profile: Profile) -> Mapping[str, Any]:
    if method in profile.alternatives:
        return dict(profile.alternatives[method].keys)
    if method == "ngram":
        return _NGRAM
    if method == "suffix":
        return {"method": "suffix"}
    known = ", ".join(["ngram", "suffix", *profile.alternatives])
    raise UsageError(f"`--method {method}` is not known here", hint=f"there are {known}")


def unasked(profile: Profile, asked: TuneRequest, *, plan: LaunchPlan) -> list[tuple[str, str, str]]:
    """Methods without a second model, and alternatives, that nobody asked for: name, method and how to add them."""
    from importlib.util import find_spec

    own = profile.speculation.method if profile.speculation else None
    found = []
    known = {*asked.methods, *profile.alternatives}
    if own != "ngram" and "ngram" not in known:
        found.append(("ngram", "ngram", "needs another launch: `--method ngram`"))
    if own != "suffix" and "suffix" not in known and find_spec("arctic_inference") is not None:
        found.append(("suffix", "suffix", "needs another launch: `--method suffix`"))
    for name, block in profile.alternatives.items():
        if name not in asked.methods:
            found.append((name, block.method, f"needs another launch: `--method {name}`"))
    other = _other_runner(profile, profile.speculation.keys, plan) if profile.speculation else None
    if other is not None and asked.runner != other:
        found.append((f"{own}-{other}", str(own), f"needs another launch: `--runner {other}`"))
    return found


_MOST_TOKENS = 8
_DETAILED = "engine.per_request_spec_decode_metrics=detailed"


def arm(
    path: str,
    asked: TuneRequest,
    *,
    name: str,
    settings: Sequence[str] = (),
    baseline: bool = False,
    starts: bool = True,
    notices: Notices,
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
        notices=notices,
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
    asked: TuneRequest,
    wanted: Sequence[Idea],
    *,
    loads: Sequence[int],
    plan: LaunchPlan,
    starts: bool,
    notices: Notices,
) -> tuple[list[Candidate], list[tuple[str, str, str]]]:
    """Those that can be launched, with their K_max and ladder; and what the rules object to in the others.

    `plan`: of the profile itself, for vLLM's version and the platform.
    """
    found: list[Candidate] = []
    left_out: list[tuple[str, str, str]] = []
    for idea in wanted:
        reason = _objection(asked, idea, starts=starts, notices=notices)
        if reason is None:
            found += _planned(profile, asked, idea, loads=loads, plan=plan, starts=starts, notices=notices)
        elif idea.is_own:
            raise UsageError(reason, hint="`--no-check` measures it all the same")
        else:
            left_out.append((idea.name, str(idea.keys["method"]), reason))
    return found, left_out


def _planned(
    profile: Profile,
    asked: TuneRequest,
    idea: Idea,
    *,
    loads: Sequence[int],
    plan: LaunchPlan,
    starts: bool,
    notices: Notices,
) -> list[Candidate]:
    from specserve.measure.tune.plan import Candidate, ladder_of, small_tokens

    assert asked.profile is not None
    most = most_tokens(asked, idea)
    there = situation(profile, idea.keys, plan=plan, env=idea.env)
    env = _env(idea.env)
    rungs, reason = ladder_of(there, loads=loads, most_tokens=most, most_requests=most_requests(profile))
    keys = {**without_k(idea.keys), "num_speculative_tokens": most}
    launched = {**keys, "num_speculative_tokens_per_batch_size": _ranges(rungs)} if rungs else keys
    settings = [_as_setting(launched), _DETAILED, *env]
    first, served = arm(
        asked.profile, asked, name=idea.name, settings=settings, starts=starts, notices=notices
    )
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
        asked.profile,
        asked,
        name=name,
        settings=[_as_setting(few), _DETAILED, *env],
        starts=starts,
        notices=notices,
    )
    return [whole, replace(whole, name=name, arm=second, most_tokens=small_tokens(most), small=True)]


def _ranges(rungs: Mapping[int, int]) -> list[list[int]]:
    from specserve.measure.tune.schedule import as_ranges

    return as_ranges(rungs)


def most_tokens(asked: TuneRequest, idea: Idea) -> int:
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


def _objection(asked: TuneRequest, idea: Idea, *, starts: bool, notices: Notices) -> str | None:
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
    return _preflight(asked, settings, notices) if starts and not idea.is_own else None


def _preflight(asked: TuneRequest, settings: Sequence[str], notices: Notices) -> str | None:
    """What is wrong with models, memory and machine; None where nothing is."""
    from specserve.checks.preflight import preflight

    try:
        preflight(
            asked.profile,
            settings=settings,
            devices=asked.devices,
            no_lock=not asked.use_lock,
            notices=notices,
        )
    except CheckFailed as error:
        first = error.findings[0] if error.findings else None
        return f"{first.code}: {first.message}" if first is not None else error.message
    return None


def _as_setting(keys: Mapping[str, Any]) -> str:
    """A block as `--set` takes it."""
    from specserve.profile.fingerprint import jsonable

    return f"speculation={json.dumps(jsonable(keys))}"


def tuned(path: str, asked: TuneRequest, choice: Choice, *, name: str, notices: Notices) -> Arm:
    """The chosen server, as the profile would serve it."""
    assert choice.speculation is not None
    return arm(
        path, asked, name=name, settings=[_as_setting(choice.speculation), *_env(choice.env)], notices=notices
    )[0]


def _env(variables: Mapping[str, str]) -> list[str]:
    """Variables as `--set` takes them."""
    return [f"env.{name}={json.dumps(value)}" for name, value in variables.items()]
