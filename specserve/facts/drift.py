"""What has changed since a lock was written: directories by their files, the Hub by the commit of a branch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specserve.errors import FactError
from specserve.facts.hashing import differences, hashed
from specserve.facts.hubcache import COMMIT
from specserve.facts.model import ModelFacts

Kind = Literal["changed", "moved", "unlocked", "unreadable"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One model that is not as its lock says, at a path of the profile."""

    path: str
    kind: Kind
    model: str
    """Or the lock itself, where it cannot be read."""
    detail: tuple[str, ...] = ()
    """What changed: files, or the new commit."""


def changed_files(entry: ModelFacts, *, model: str) -> tuple[str, ...]:
    """How the files of a directory differ from those of its lock. Raises FactError where it cannot be read."""
    from specserve.facts.folder import read_folder

    now = hashed(read_folder(Path(model), model=model, origin="directory", need_config=False))
    return differences(entry.files, now.files)


def moved_to(entry: ModelFacts) -> str | None:
    """The commit that the branch of a locked model has now, where it is another. Raises FactError."""
    if entry.commit is None or (entry.revision and COMMIT.fullmatch(entry.revision)):
        return None
    from specserve.facts.hub import current_commit

    now = current_commit(entry.model, revision=entry.revision)
    return now if now != entry.commit else None


def drift_of(entry: ModelFacts | None, *, path: str, model: str, ask_hub: bool) -> Drift | None:
    """How one model of a profile differs from its entry in the lock; None where it does not.

    Raises FactError where the Hub was asked and did not answer.
    """
    if entry is None:
        return Drift(path, "unlocked", model)
    if entry.commit is None:
        try:
            files = changed_files(entry, model=model)
        except FactError as error:
            files = (error.message,)
        return Drift(path, "changed", model, files) if files else None
    commit = moved_to(entry) if ask_hub else None
    return Drift(path, "moved", model, (commit,)) if commit else None
