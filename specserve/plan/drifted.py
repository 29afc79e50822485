"""A profile against the lock beside it: what is no longer as it says. Writes nothing."""

from __future__ import annotations

from specserve.errors import FactError
from specserve.models.lock import Drift, Lock, drift_of
from specserve.plan.locked import lock_of
from specserve.plan.uses import model_uses
from specserve.profile.schema import Profile


def drifts(profile: Profile, *, ask_hub: bool) -> tuple[Drift, ...]:
    """Each model that is not as the profile's lock says, in the order of the profile; nothing without a lock.

    `ask_hub`: whether branches have moved is asked; FactError is raised where the Hub does not answer.
    """
    try:
        lock = lock_of(profile)
    except FactError as error:
        return (Drift("target.model", "unreadable", "the lock", (error.message,)),)
    return drifts_from(profile, lock, ask_hub=ask_hub) if lock else ()


def drifts_from(profile: Profile, lock: Lock, *, ask_hub: bool) -> tuple[Drift, ...]:
    """The same for a lock that was read. Raises FactError."""
    seen: dict[tuple[str, str | None], Drift | None] = {}
    for use in model_uses(profile):
        key = (use.model, use.revision)
        if key not in seen:
            entry = lock.entry(use.model, use.revision)
            seen[key] = drift_of(entry, path=use.path, model=use.model, ask_hub=ask_hub)
    return tuple(drift for drift in seen.values() if drift)


def unused(profile: Profile, lock: Lock) -> tuple[str, ...]:
    """The models of a lock that its profile does not name any more."""
    used = [lock.entry(use.model, use.revision) for use in model_uses(profile)]
    return tuple(entry.model for entry in lock.models if entry not in used)
