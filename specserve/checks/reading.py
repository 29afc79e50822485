"""Where a check's models come from: the lock, directories, the Hub cache, the Hub. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import FactError
from specserve.plan.uses import model_uses
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift, Lock

Read = Callable[[str, str | None], "ModelFacts"]
"""The facts of a model at a revision. Raises FactError."""


def reader(
    profile: Profile, *, lock: Lock | None, locked: bool, offline: bool, tell: Callable[[str], None]
) -> Read:
    """Reads each model once: a directory as it is, a model of the Hub as the lock says, where there is one.

    `locked`: the lock alone, directories included.
    """
    bare = {(use.model, use.revision) for use in model_uses(profile) if use.tokenizer_only}
    seen: dict[tuple[str, str | None], ModelFacts | FactError] = {}

    def read(model: str, revision: str | None) -> ModelFacts:
        key = (model, revision)
        if key not in seen:
            tell(f"reading {model}")
            try:
                seen[key] = _read(
                    model, revision, lock=lock, locked=locked, offline=offline, need_config=key not in bare
                )
            except FactError as error:
                seen[key] = error
        found = seen[key]
        if isinstance(found, FactError):
            raise found
        return found

    return read


def _read(
    model: str, revision: str | None, *, lock: Lock | None, locked: bool, offline: bool, need_config: bool
) -> ModelFacts:
    from specserve.models.read import read_model

    entry = lock.find(model, revision=revision) if lock else None
    if entry is not None and (locked or entry.commit is not None):
        return entry
    if locked:
        raise FactError(f"`{model}` is not in the lock", hint="`specserve lock` records it")
    return read_model(model, revision=revision, folder=Path.cwd(), offline=offline, need_config=need_config)


def drifted(profile: Profile, lock: Lock, *, ask_hub: bool, locked: bool) -> tuple[Drift, ...]:
    """How the models of a profile differ from its lock; what nobody can tell is left out.

    `locked`: a directory that is not on this machine has not changed.
    """
    from specserve.models.lock import drift_of

    found = []
    for use in model_uses(profile):
        entry = lock.find(use.model, revision=use.revision)
        if locked and entry is not None and entry.commit is None and not Path(use.model).exists():
            continue
        with suppress(FactError):
            drift = drift_of(entry, path=use.path, model=use.model, ask_hub=ask_hub)
            found += [drift] if drift else []
    return tuple(found)
