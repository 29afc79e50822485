"""What is known of two profiles, side by side: their models and the memory they need. Never asks the Hub."""

from __future__ import annotations

from dataclasses import replace

from specserve.checks.gather import Known, Wanted, gather
from specserve.errors import FactError
from specserve.facts.model import ModelFacts
from specserve.plan.compare import Difference, Written, differences
from specserve.plan.comparefacts import memory_values, model_values
from specserve.plan.memory.estimate import MemoryEstimate
from specserve.profile.schema import Profile

Differences = tuple[Difference, ...]


def compare_known(
    a: Profile, b: Profile, *, versions: tuple[str, str]
) -> tuple[Differences | None, Differences | None, list[str]]:
    """What differs of the models and of the memory, None where it is not known of both; and why it is not."""
    why: dict[str, None] = {}
    known = [_known(profile, version, why) for profile, version in zip((a, b), versions, strict=True)]
    if known[0] is None or known[1] is None:
        return None, None, list(why)
    models = _models(known[0], known[1])
    memory = _memory(known[0], known[1], why)
    return models, memory, list(why)


def _known(profile: Profile, version: str, why: dict[str, None]) -> Known | None:
    """The profile's models and memory without its alternatives; None where no model of it could be read."""
    alone = replace(profile, alternatives={})
    try:
        known = gather(alone, wanted=Wanted(offline=True, version=".".join(version.split(".")[:2])))
    except FactError as error:
        why[error.message] = None
        return None
    why.update(dict.fromkeys(item.error.message for item in known.unread))
    return None if known.unread else known


def _models(a: Known, b: Known) -> Differences:
    left, right = dict[str, Written](), dict[str, Written]()
    for role, of in (("target", _target), ("draft", _draft)):
        for values, facts, other in ((left, of(a), of(b)), (right, of(b), of(a))):
            if facts:
                every = model_values(role, facts)
                # a model that only one side has is told by its name
                values.update(every if other else {f"{role}.model": every[f"{role}.model"]})
    return differences(left, right)


def _target(known: Known) -> ModelFacts | None:
    return known.context.target


def _draft(known: Known) -> ModelFacts | None:
    return known.context.arms[0].draft if known.context.arms else None


def _estimate(known: Known) -> MemoryEstimate | None:
    return known.context.arms[0].memory if known.context.arms else known.context.memory


def _memory(a: Known, b: Known, why: dict[str, None]) -> Differences | None:
    estimates = [_estimate(known) for known in (a, b)]
    left, right = estimates
    if left is None or right is None:
        why.update(dict.fromkeys(reason for known in (a, b) for reason in known.missing.values()))
        return None
    return differences(memory_values(left), memory_values(right))
