"""What is known of two profiles, side by side: their models and the memory they need. Never asks the Hub."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specserve.checks.gather import Known, Wanted, gather
from specserve.errors import FactError
from specserve.models.facts import ModelFacts
from specserve.plan.compare import Difference, Written, differences
from specserve.plan.comparefacts import memory_values, model_values
from specserve.plan.memory.estimate import MemoryEstimate
from specserve.profile.schema import Profile

Differences = tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class At:
    """A profile and the vLLM version it is looked at for; `locked`: with what its lock holds, and nothing else."""

    profile: Profile
    version: str
    locked: bool = False


def compare_known(a: At, b: At) -> tuple[Differences | None, Differences | None, list[str]]:
    """What differs of the models and of the memory, None where it is not known of both; and why it is not."""
    why: dict[str, None] = {}
    left, right = _known(a, why), _known(b, why)
    if left is None or right is None:
        return None, None, list(why)
    models = _models(left, right)
    memory = _memory(left, right, why)
    return models, memory, list(why)


def _known(side: At, why: dict[str, None]) -> Known | None:
    """The profile's models and memory without its alternatives; None where a model of it could not be read."""
    version = ".".join(side.version.split(".")[:2])
    wanted = Wanted(offline=True, version=version, locked=side.locked, no_lock=not side.locked)
    try:
        known = gather(replace(side.profile, alternatives={}), wanted=wanted)
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
