"""What a tune could try: the profile's own way to speculate, others, and what nobody asked for. Plans nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.errors import UsageError

if TYPE_CHECKING:
    from specserve.cli.tuneprepare import Asked
    from specserve.measure.tune.schedule import Situation
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


def ideas(profile: Profile, asked: Asked, *, temperatures: Sequence[float], plan: LaunchPlan) -> list[Idea]:
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


def _on_runner(own: Mapping[str, Any], asked: Asked, profile: Profile, plan: LaunchPlan) -> list[Idea]:
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


def unasked(profile: Profile, asked: Asked, *, plan: LaunchPlan) -> list[tuple[str, str, str]]:
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


def situation(
    profile: Profile, keys: Mapping[str, Any], *, plan: LaunchPlan, env: Mapping[str, str] | None = None
) -> Situation:
    """What decides whether a schedule by batch size holds for a candidate here."""
    from specserve.measure.tune.schedule import Situation
    from specserve.memory.defaults import arguments, runner

    on_cpu = plan.platform == "cpu"
    ranks = profile.engine.get("data_parallel_size")
    return Situation(
        method=str(keys["method"]),
        runner="v1"
        if on_cpu
        else runner(
            plan.vllm,
            arguments=arguments(profile),
            speculation=keys,
            env={**profile.env, **(env or {})},
        ),
        platform=plan.platform,
        data_parallel_size=ranks if isinstance(ranks, int) else 1,
        enforce_eager=profile.engine.get("enforce_eager") is True,
    )
