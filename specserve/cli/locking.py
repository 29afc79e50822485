"""A launch by its lock: the locked commits, and no question to the Hub where everything is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.models.lock import Lock


def at_lock(profile: Profile, *, use_lock: bool, needed: bool) -> tuple[Profile, Lock | None]:
    """The profile at the commits of the lock beside it, and that lock. Raises FactError where a needed one fails.

    UsageError where it is needed and must not be used.
    """
    if needed and not use_lock:
        raise UsageError("`--locked` and `--no-lock` contradict each other", hint="give one of them")
    if not use_lock:
        return profile, None
    from specserve.plan.locking import lock_of, locked, not_locked

    lock = lock_of(profile)
    if lock is None:
        if needed:
            raise FactError(f"`{profile.file}` has no lock beside it", hint="`specserve lock` writes it")
        return profile, None
    missing = not_locked(profile, lock) if needed else ()
    if missing:
        raise FactError(f"`{missing[0].model}` is not in the lock", hint="`specserve lock` records it")
    return locked(profile, lock), lock


def without_hub(plan: LaunchPlan, *, profile: Profile, lock: Lock | None, needed: bool) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE where the lock is complete and the cache has it. Raises FactError if needed."""
    if lock is None:
        return plan
    from specserve.plan.launch import offline
    from specserve.plan.locking import offline_problems

    problems = offline_problems(profile, lock)
    if not problems:
        return offline(plan, why="the cache holds all that the lock names")
    if needed:
        raise FactError(
            "not everything that the lock names is here",
            hint="`specserve pull` downloads it",
            causes=problems,
        )
    return plan
