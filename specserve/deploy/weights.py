"""How large the models of a deployment are on disk: by the lock, or by what is published of them."""

from __future__ import annotations

from specserve.models.facts import published_weights
from specserve.plan.locking import lock_of
from specserve.plan.uses import model_uses
from specserve.profile.schema import Profile


def locked_bytes(profile: Profile) -> float | None:
    """Returns what target and draft weigh on disk by the lock beside a profile; None if it does not know both."""
    lock = lock_of(profile)
    total = 0
    for use in model_uses(profile, alternatives=False) if lock else ():
        facts = lock.find(use.model, revision=use.revision) if lock else None
        sizes = [facts.files[name].size_bytes for name in facts.weight_files] if facts else [None]
        if use.tokenizer_only:
            continue
        if None in sizes:
            return None
        total += sum(size or 0 for size in sizes)
    return total or None


def published_bytes(profile: Profile) -> tuple[float, str] | None:
    """Returns what target and draft weigh by what is published of them, and the basis.

    None if nothing is published of the target.
    """
    block = profile.speculation
    weights = published_weights(profile.target.model, "weights")
    if weights is None:
        return None
    total, words = sum(weights.values()), "by the published size"
    if block and block.model:
        drafted = published_weights(block.model, "weights")
        total += sum((drafted or {}).values())
        words += "" if drafted else ", without the draft"
    return total, words
