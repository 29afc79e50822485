"""How large the models of a deployment are on disk."""

from __future__ import annotations

from specserve.models.facts import published_weights
from specserve.plan.locking import lock_of
from specserve.plan.uses import model_uses
from specserve.profile.schema import Profile

_UNKNOWN_BYTES = 60e9


def model_bytes(profile: Profile) -> tuple[float, str]:
    """Return what target and draft weigh, and where that comes from.

    It is the lock's size, or the published one; no local folder is looked at, so that the same
    profile and lock give the same files everywhere.
    """
    uses = [use for use in model_uses(profile, alternatives=False) if not use.tokenizer_only]
    lock = lock_of(profile)
    facts = [lock.find(use.model, revision=use.revision) if lock else None for use in uses]
    sizes = [one.files[name].size_bytes for one in facts if one for name in one.weight_files]
    if all(facts) and sizes and None not in sizes:
        return sum(size or 0 for size in sizes), "by the lock"
    published = [published_weights(use.model, "weights") for use in uses]
    if not published[0]:
        return _UNKNOWN_BYTES, "a guess: `specserve lock` records the real size"
    without = "" if all(published) else ", without the draft"
    return sum(sum((one or {}).values()) for one in published), f"by the published size{without}"
