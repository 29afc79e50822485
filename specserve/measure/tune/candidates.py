"""What a tune could try, each way planned as it is measured, and why the others are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices, Severity
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.tune.plan import Candidate, ladder_of, small_tokens
from specserve.measure.tune.schedule import as_ranges, most_requests, situation

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Arm
    from specserve.measure.tune.plan import TuneRequest
    from specserve.measure.tune.result import Choice
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile


_SAMPLED = frozenset({"draft_model", "eagle", "eagle3", "mtp"})
"""Methods whose drafts can be sampled."""
WITHOUT_DRAFT: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
"""The blocks of the methods that need no draft."""
_MOST_TOKENS = 8
_DETAILED = "engine.per_request_spec_decode_metrics=detailed"


@dataclass(frozen=True, slots=True)
class Idea:
    """One way to speculate, before anything is planned."""

    name: str
    keys: Mapping[str, Any]
    is_own: bool = False


def ideas(profile: Profile, asked: TuneRequest, *, temperatures: Sequence[float]) -> list[Idea]:
    """In the order of their use: the profile's own first. Raises UsageError for a candidate that is none."""
    own: dict[str, Any] = dict(profile.speculation.keys) if profile.speculation else {}
    if not own and not asked.candidates:
        raise UsageError(
            f"`{profile.file}` does not speculate: there is nothing to tune",
            hint="add a `speculation` section, or name a draft with `--candidate MODEL`",
        )
    found = [Idea(str(own["method"]), own, is_own=True), *_sampled(own, temperatures)] if own else []
    for name in dict.fromkeys(asked.candidates):
        idea = _named(name, own, profile)
        if not any(without_k(idea.keys) == without_k(each.keys) for each in found):
            found.append(idea)
    names: list[str] = []
    for idea in found:  # two drafts may be called `final`
        count = sum(name.partition("#")[0] == idea.name for name in names)
        names.append(f"{idea.name}#{count + 1}" if count else idea.name)
    return [replace(idea, name=name.replace("#", "-")) for idea, name in zip(found, names, strict=True)]


def without_k(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A block without what says how many tokens are drafted."""
    without = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    return {name: value for name, value in keys.items() if name not in without}


def _sampled(own: Mapping[str, Any], temperatures: Sequence[float]) -> list[Idea]:
    """The other way to sample drafts, if requests are sampled at all."""
    if max(temperatures) <= 0 or own["method"] not in _SAMPLED or own.get("use_heterogeneous_vocab"):
        return []
    other = "greedy" if own.get("draft_sample_method") == "probabilistic" else "probabilistic"
    return [Idea(f"{own['method']}-{other}", {**own, "draft_sample_method": other})]


def _named(name: str, own: Mapping[str, Any], profile: Profile) -> Idea:
    """An alternative of the profile, a method without a draft, or a draft model."""
    if name in profile.alternatives:
        return Idea(name, dict(profile.alternatives[name].keys))
    if name in WITHOUT_DRAFT:
        return Idea(name, WITHOUT_DRAFT[name])
    path = Path(name)
    if not path.is_dir() and "/" not in name:
        known = ", ".join(dict.fromkeys([*WITHOUT_DRAFT, *profile.alternatives]))
        raise UsageError(
            f"`--candidate {name}` is neither a method nor an alternative of the profile",
            hint=f"use {known}, or a draft model (ORG/NAME or a folder)",
        )
    keys = dict(own) if own.get("method") == "draft_model" else {"method": "draft_model"}
    keys.pop("revision", None)
    return Idea(
        f"draft-{path.name.lower()}", {**keys, "model": str(path.absolute()) if path.is_dir() else name}
    )


def not_tried(profile: Profile, asked: TuneRequest) -> list[tuple[str, str, str]]:
    """Methods without a draft and alternatives that were not named: name, method and how to add them."""
    own = profile.speculation.method if profile.speculation else None
    methods = {name: block.method for name, block in profile.alternatives.items()}
    for name in WITHOUT_DRAFT:
        if name != own and (name != "suffix" or find_spec("arctic_inference") is not None):
            methods.setdefault(name, name)
    return [
        (name, method, f"needs another launch: `--candidate {name}`")
        for name, method in methods.items()
        if name not in asked.candidates
    ]


def arm(
    path: str,
    asked: TuneRequest,
    *,
    name: str,
    settings: Sequence[str] = (),
    baseline: bool = False,
    starts: bool = True,
    notices: Notices,
) -> Arm:
    """One planned server, at its lock; `starts`: by the vLLM that is here.

    Raises ProfileError, UsageError, FactError.
    """
    from specserve.measure.bench.arms import plan_arm

    every = (*asked.settings, *settings)
    return plan_arm(path, name, every, check=False, starts=starts, notices=notices, baseline=baseline)


def tuned(path: str, asked: TuneRequest, choice: Choice, *, name: str, notices: Notices) -> Arm:
    """The chosen server, as the profile would serve it."""
    assert choice.speculation is not None
    return arm(path, asked, name=name, settings=[_as_setting(choice.speculation)], notices=notices)


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
            raise UsageError(reason, hint="run `specserve check` for details")
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
    """One launch, or two if a launch has one K: with K_max and with a small one."""
    most = most_tokens(asked, idea)
    there = situation(profile, idea.keys, plan=plan)
    rungs, reason = ladder_of(there, loads=loads, most_tokens=most, most_requests=most_requests(profile))

    def launch(name: str, keys: Mapping[str, Any]) -> Arm:
        settings = [_as_setting(keys), _DETAILED]
        return arm(asked.profile, asked, name=name, settings=settings, starts=starts, notices=notices)

    keys = {**without_k(idea.keys), "num_speculative_tokens": most}
    ladder = {"num_speculative_tokens_per_batch_size": as_ranges(rungs)} if rungs else {}
    whole = Candidate(
        name=idea.name,
        arm=launch(idea.name, {**keys, **ladder}),
        keys=keys,
        runner=there.runner,
        most_tokens=most,
        rungs=rungs,
        why_no_ladder=reason,
        is_own=idea.is_own,
    )
    if rungs or most < 3:
        return [whole]
    few = small_tokens(most)
    name = f"{idea.name}-k{few}"
    second = launch(name, {**keys, "num_speculative_tokens": few})
    return [whole, replace(whole, name=name, arm=second, most_tokens=few, small=True)]


def most_tokens(asked: TuneRequest, idea: Idea) -> int:
    """K_max: what was given, else 8 or the profile's own K; of a head that drafts in blocks at most its block."""
    own = idea.keys.get("num_speculative_tokens")
    own = int(own) if isinstance(own, int | str) and str(own).isdigit() else 0
    if idea.keys["method"] in ("dflash", "dspark", "mtp") or idea.keys.get("parallel_drafting"):
        return min(asked.most_tokens or own or 1, own or 1)
    return asked.most_tokens or max(own, _MOST_TOKENS)


def _objection(asked: TuneRequest, idea: Idea, *, starts: bool, notices: Notices) -> str | None:
    """The first error of the rules about a candidate as it would be served; None without one.

    `starts`: models, memory and machine too; those of the profile's own were examined before.
    """
    from specserve.checks.prepare import preflight
    from specserve.checks.run import examined
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.load import load_profile

    keys = {**without_k(idea.keys), "num_speculative_tokens": most_tokens(asked, idea)}
    settings = (*asked.settings, _as_setting(keys))
    try:
        findings = examined(load_profile(asked.profile, settings=settings)).findings
        errors = [
            each
            for each in findings
            if each.severity is Severity.ERROR and not each.span.path.startswith("alternatives.")
        ]
        if not errors and starts and not idea.is_own:
            preflight(asked.profile, LaunchOptions(settings=settings), notices=notices)
    except CheckFailed as error:
        errors = list(error.findings)[:1]
        if not errors:
            return error.message
    except SpecserveError as error:
        return error.message
    return f"{errors[0].code}: {errors[0].message}" if errors else None


def _as_setting(keys: Mapping[str, Any]) -> str:
    """A block as `--set` takes it."""
    from specserve.vllm.arguments import jsonable

    return f"speculation={json.dumps(jsonable(keys))}"
