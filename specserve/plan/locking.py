"""A profile and the lock beside it: made, applied, compared with today's models."""

from __future__ import annotations

import datetime
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specserve.errors import FactError, UsageError
from specserve.files import write_named
from specserve.models.facts import ModelFacts
from specserve.models.hub import find_snapshot, is_offline, read_from_hub
from specserve.models.lock import (
    Drift,
    Lock,
    drift_of,
    hashed,
    identity,
    is_path,
    lock_path,
    lock_text,
    read_lock,
)
from specserve.models.read import local_path, read_model, refuse_no_hub_id
from specserve.plan.launchplan import LaunchPlan
from specserve.plan.uses import ModelUse, cache_of, model_uses
from specserve.profile.schema import Profile, Speculation


def lock_of(profile: Profile) -> Lock | None:
    """The lock beside a profile; None where there is none. Raises FactError for a bad one."""
    file = lock_path(profile.file)
    return read_lock(file) if file else None


def entries(profile: Profile, lock: Lock) -> list[tuple[ModelUse, ModelFacts | None]]:
    """Every model of a profile, and what the lock has of it at that revision."""
    return [(use, lock.find(use.model, revision=use.revision)) for use in model_uses(profile)]


def not_locked(profile: Profile, lock: Lock) -> tuple[ModelUse, ...]:
    """The models of a profile that its lock does not have, or has for another revision."""
    return tuple(use for use, entry in entries(profile, lock) if entry is None)


def locked(profile: Profile, lock: Lock) -> Profile:
    """The profile with the commit of each model of the Hub as its revision; places stay.

    What the lock does not have keeps its own revision. The fingerprint rests on locked contents.
    """
    identities: dict[tuple[str, str | None], str] = {}
    commits: dict[str, str] = {}
    for use, entry in entries(profile, lock):
        if entry:
            keys = ((use.model, use.revision), (use.model, entry.commit))
            identities |= dict.fromkeys(keys, identity(entry))
            commits |= {use.path: entry.commit} if entry.commit else {}
    # vLLM would ask another repository of a tokenizer for the target's revision
    tokenizer = commits.get("target.tokenizer") or commits.get("engine.tokenizer_revision")

    def pinned(block: Speculation, path: str) -> Speculation:
        commit = commits.get(f"{path}.model") or commits.get(f"{path}.method")
        return replace(block, keys={**block.keys, "revision": commit}) if commit else block

    revision = commits.get("target.model", profile.target.revision)
    block = profile.speculation
    return replace(
        profile,
        target=replace(profile.target, revision=revision),
        speculation=pinned(block, "speculation") if block else None,
        alternatives={
            name: pinned(other, f"alternatives.{name}")
            for name, other in profile.alternatives.items()
        },
        engine={**profile.engine, "tokenizer_revision": tokenizer} if tokenizer else profile.engine,
        identities=identities,
    )


def at_lock(profile: Profile, *, is_needed: bool | None) -> tuple[Profile, Lock | None]:
    """The profile at the commits of its lock, and that lock; False: as if there were none.

    Raises FactError if a lock is needed and fails.
    """
    lock = None if is_needed is False else lock_of(profile)
    if lock is None:
        if is_needed:
            raise FactError(f"`{profile.file}` has no lock file", hint="`specserve lock` writes it")
        return profile, None
    if is_needed and (missing := not_locked(profile, lock)):
        text = f"`{missing[0].model}` is not in the lock"
        raise FactError(text, hint="`specserve lock` records it")
    return locked(profile, lock), lock


def without_hub(
    plan: LaunchPlan, profile: Profile, lock: Lock | None, *, needed: bool
) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE if the lock is complete and the cache has all of it.

    Raises FactError if the Hub is not to be `needed` and is.
    """
    if lock is None:
        return plan
    problems = offline_problems(profile, lock)
    if problems and needed:
        hint = "`specserve pull` downloads what is missing; `specserve lock` records what changed"
        raise FactError("some files are not as the lock says", hint=hint, causes=problems)
    return plan if problems else offline(plan, why="the cache has all that the lock lists")


def offline(plan: LaunchPlan, *, why: str) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE and the served name that it has with the Hub.

    Offline, vLLM replaces a Hub id by the path of its snapshot, and labels its metrics with it.
    Source: vllm/engine/arg_utils.py, `HF_HUB_OFFLINE is True, replace model_id`, 0.26-0.33.
    """
    plan, name = plan.with_env("HF_HUB_OFFLINE", "1", why), "--served-model-name"
    named = any(word == name or word.startswith(f"{name}=") for word in plan.argv)
    if named or local_path(plan.model) is not None:
        return plan
    why = "offline, vLLM would label its metrics with a path of the cache"
    return plan.with_option(name, plan.model, why=why)


def offline_problems(profile: Profile, lock: Lock) -> tuple[str, ...]:
    """Why a launch of this profile needs the Hub; nothing: HF_HUB_OFFLINE may be set.

    Every file of the lock must lie in the Hub cache at its commit, and every directory be there.
    """
    problems = list(_elsewhere(profile))
    for use, entry in entries(replace(profile, alternatives={}), lock):
        if entry is None:
            problems.append(f"`{use.model}` is not in the lock")
            continue
        folder: Path | None = Path(use.model)
        if entry.commit:
            folder = find_snapshot(use.model, revision=entry.commit, cache=cache_of(profile))
        if folder is None:
            problems.append(f"`{use.model}` is not in the Hub cache at {str(entry.commit)[:12]}")
        elif bad := [name for name in entry.files if not _is_same(entry, name, folder)]:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            problems.append(f"missing, or of another size: `{bad[0]}`{more} of `{entry.model}`")
    return tuple(problems)


def _is_same(entry: ModelFacts, name: str, folder: Path) -> bool:
    """Whether a file of the lock is in a folder, with its size."""
    with suppress(OSError):
        return entry.files[name].size_bytes in (None, (folder / name).stat().st_size)
    return False


def _elsewhere(profile: Profile) -> list[str]:
    """What a launch reads from the Hub besides its models, or keeps outside of the Hub cache."""
    engine, block = profile.engine, profile.speculation
    found = {
        "engine.download_dir": engine.get("download_dir"),
        "frontend.lora_modules": profile.frontend.get("lora_modules"),
    }
    for name in ("hf_config_path", "generation_config"):
        value = str(engine.get(name) or "auto")
        found[f"engine.{name}"] = value not in ("auto", "vllm") and not Path(value).exists()
    problems = [f"`{path}` is not covered by the lock" for path in found if found[path]]
    if block and block.keys.get("use_heterogeneous_vocab") and not is_path(block.model or "."):
        # vllm/v1/spec_decode/draft_model.py asks for the draft's tokenizer without a revision
        snapshot = find_snapshot(str(block.model), revision=None, cache=cache_of(profile))
        if snapshot is None or not (snapshot / "tokenizer_config.json").is_file():
            problems.append(f"vLLM reads the tokenizer of `{block.model}` at `main`")
    return problems


@dataclass(frozen=True, slots=True)
class Locked:
    """What was locked."""

    file: Path
    models: tuple[ModelFacts, ...]
    changed: bool
    """Whether the file had to be written."""


def lock_profile(profile: Profile) -> Locked:
    """Read every model of a profile and write the lock beside it, unless it says the same already.

    Raises FactError for a model that cannot be read, UsageError for a profile that is not a file.
    """
    file = lock_path(profile.file)
    if file is None or not Path(profile.file).is_file():
        raise UsageError("only a profile in a file can be locked", hint="write it to a file first")
    read: dict[tuple[str, str | None], ModelFacts] = {}
    for use in model_uses(profile):
        place = local_path(use.model)
        key = (use.model, use.revision if place is None else None)  # a directory has no revisions
        if key not in read or (not use.tokenizer_only and not read[key].config):
            read[key] = _read_today(use)
    models = tuple(
        hashed(replace(facts, model=_recorded(profile, model, file), revision=revision))
        for (model, revision), facts in read.items()
    )
    with suppress(FactError):  # one that says the same stays: its date is that of the last change
        old = read_lock(file)
        if old and file.read_text(encoding="utf-8") == lock_text(models, created=old.created):
            return Locked(file, models, changed=False)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_named(file, lock_text(models, created=today))
    return Locked(file, models, changed=True)


def _read_today(use: ModelUse) -> ModelFacts:
    """A model as it is now: of the Hub the commit of today, whatever the cache holds."""
    if local_path(use.model) is None and not is_offline():
        refuse_no_hub_id(use.model, revision=use.revision)
        return read_from_hub(use.model, revision=use.revision)
    return read_model(use.model, revision=use.revision, offline=is_offline())


def _recorded(profile: Profile, model: str, file: Path) -> str:
    """A model's name in the lock: a path that was written relative is relative to the lock."""
    place = local_path(model)
    if place is None or model not in profile.relative_paths:
        return str(place or model)
    relative = Path(os.path.relpath(place, file.parent)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def drifts_from(profile: Profile, lock: Lock, *, ask_hub: bool) -> tuple[Drift, ...]:
    """Each model that is not as the lock says, in the order of the profile. Raises FactError.

    `ask_hub`: whether branches have moved is asked.
    """
    seen: dict[tuple[str, str | None], Drift | None] = {}
    for use, entry in entries(profile, lock):
        key = (use.model, use.revision)
        if key not in seen:
            seen[key] = drift_of(entry, path=use.path, model=use.model, ask_hub=ask_hub)
    return tuple(drift for drift in seen.values() if drift)


LockState = Literal["holds", "missing", "stale"]
_DRIFTS = {
    "unlocked": "is not in the lock",
    "changed": "is not as in the lock",
    "moved": "has moved on the Hub",
}


def lock_problems(profile: Profile, *, ask_hub: bool) -> tuple[LockState, list[str]]:
    """Whether a profile's lock is there and right, and what is not; a moved branch is a note."""
    try:
        lock = lock_of(profile)
    except FactError as error:
        return "stale", [f"{profile.file}: {error.message}"]
    if lock is None:
        return "missing", [f"{profile.file}: there is no lock"]
    drifts, lines = drifts_from(profile, lock, ask_hub=ask_hub), []
    for drift in drifts:
        detail = f": {', '.join(drift.detail)}" if drift.detail else ""
        note = "note: " if drift.kind == "moved" else ""
        place = f"{profile.name}, {profile.span(drift.path)}: {note}`{drift.model}`"
        lines.append(f"{place} {_DRIFTS[drift.kind]}{detail}")
    used = [entry for _, entry in entries(profile, lock)]
    absent = [entry.model for entry in lock.models if entry not in used]
    lines += [f"{profile.file}: `{model}` of the lock is not in the profile" for model in absent]
    is_stale = absent or any(drift.kind != "moved" for drift in drifts)
    return ("stale" if is_stale else "holds"), lines
