"""A profile at the revisions of its lock. Asks no Hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specserve.facts.download import missing_of_listing
from specserve.facts.hashing import identity
from specserve.facts.hubcache import find_snapshot, hub_cache
from specserve.facts.lockfile import Lock, is_path, lock_path, read_lock
from specserve.facts.model import ModelFacts
from specserve.plan.uses import ModelUse, draft_use, model_uses, tokenizer_use
from specserve.profile.schema import Profile, Speculation

_TOKENIZER_REVISION = "tokenizer_revision"


def lock_of(profile: Profile) -> Lock | None:
    """The lock beside a profile; None where there is none. Raises FactError for one that cannot be used."""
    file = lock_path(profile.file)
    return read_lock(file) if file else None


def not_locked(profile: Profile, lock: Lock) -> tuple[ModelUse, ...]:
    """The models of a profile that its lock does not have, or has for another revision."""
    return tuple(use for use in model_uses(profile) if lock.find(use.model, revision=use.revision) is None)


def locked(profile: Profile, lock: Lock) -> Profile:
    """The profile with the commit of each model of the Hub as its revision; places stay where they are.

    What the lock does not have keeps its own revision. The fingerprint then rests on the locked contents.
    """
    target = profile.target
    entry = lock.find(target.model, revision=target.revision)
    engine = _with_tokenizer(profile, lock)
    return replace(
        profile,
        target=replace(target, revision=entry.commit) if entry and entry.commit else target,
        speculation=_at_commit(profile, profile.speculation, lock) if profile.speculation else None,
        alternatives={name: _at_commit(profile, block, lock) for name, block in profile.alternatives.items()},
        engine=engine,
        identities=_identities(profile, lock),
    )


def _identities(profile: Profile, lock: Lock) -> dict[tuple[str, str | None], str]:
    """What each model is, by its revision and by its commit."""
    found: dict[tuple[str, str | None], str] = {}
    for use in model_uses(profile):
        entry = lock.find(use.model, revision=use.revision)
        if entry:
            found |= dict.fromkeys(((use.model, use.revision), (use.model, entry.commit)), identity(entry))
    return found


def _with_tokenizer(profile: Profile, lock: Lock) -> Mapping[str, Any]:
    """The engine's arguments with the tokenizer's commit: vLLM would ask another repository for the target's."""
    target, use = profile.target, tokenizer_use(profile)
    if (use.model, use.revision) == (target.model, target.revision):
        return profile.engine
    entry = lock.find(use.model, revision=use.revision)
    return {**profile.engine, _TOKENIZER_REVISION: entry.commit} if entry and entry.commit else profile.engine


def _at_commit(profile: Profile, block: Speculation, lock: Lock) -> Speculation:
    use = draft_use(profile, block, path="")
    entry = lock.find(use.model, revision=use.revision) if use else None
    if entry is None or entry.commit is None:
        return block
    return replace(block, keys={**block.keys, "revision": entry.commit})


def offline_problems(profile: Profile, lock: Lock | None) -> tuple[str, ...]:
    """Why a launch of this profile could not do without the Hub; nothing: HF_HUB_OFFLINE may be set.

    Every file of the lock must lie in the Hub cache at its locked commit, and every directory must be there.
    """
    if lock is None:
        return ("there is no lock",)
    problems = list(_elsewhere(profile))
    cache = hub_cache({**os.environ, **profile.env})
    for use in model_uses(profile, alternatives=False):
        entry = lock.find(use.model, revision=use.revision)
        if entry is None:
            problems.append(f"`{use.model}` is not in the lock")
        elif entry.commit is None:
            problems += _absent(entry, Path(use.model))
        else:
            snapshot = find_snapshot(use.model, revision=entry.commit, cache=cache)
            if snapshot is None:
                problems.append(f"`{use.model}` is not in the Hub cache at {entry.commit[:12]}")
            else:
                problems += _absent(entry, snapshot.folder)
                problems += _refused(entry, snapshot.folder) if "speculation" in use.path else []
    return tuple(dict.fromkeys(problems))


def _elsewhere(profile: Profile) -> list[str]:
    """What a launch reads from the Hub besides its models, and what makes it look elsewhere for them."""
    problems = []
    engine, block = profile.engine, profile.speculation
    if engine.get("download_dir"):
        problems.append("`engine.download_dir` keeps weights outside of the Hub cache")
    for key, usual in (("hf_config_path", ()), ("generation_config", ("auto", "vllm"))):
        value = engine.get(key)
        if value is not None and value not in usual and not Path(str(value)).exists():
            problems.append(f"`engine.{key}` names what the lock does not have")
    if profile.frontend.get("lora_modules"):
        problems.append("adapters are not in the lock")
    if block and block.keys.get("use_heterogeneous_vocab") and block.model and not is_path(block.model):
        # vllm/v1/spec_decode/draft_model.py asks for the draft's tokenizer without a revision
        cache = hub_cache({**os.environ, **profile.env})
        snapshot = find_snapshot(block.model, revision=None, cache=cache)
        if snapshot is None or not (snapshot.folder / "tokenizer_config.json").is_file():
            problems.append(
                f"vLLM reads the tokenizer of `{block.model}` at `main`, which is not in the Hub cache"
            )
    return problems


def _refused(entry: ModelFacts, folder: Path) -> list[str]:
    """A draft, unlike a target, is loaded by its Hub id: the library must take its snapshot for complete."""
    missing = missing_of_listing(folder)
    return (
        [f"the Hub library misses `{missing[0]}` of `{entry.model}`: `specserve pull` cures it"]
        if missing
        else []
    )


def _absent(entry: ModelFacts, folder: Path) -> list[str]:
    """The files of a model that are not in a folder with their size."""
    missing = []
    for name, file in entry.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError:
            size = -1
        if size < 0 or (file.size_bytes is not None and size != file.size_bytes):
            missing.append(name)
    for name in entry.weight_files:
        if name not in entry.files and not (folder / name).is_file():
            missing.append(name)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return [f"`{missing[0]}`{more} of `{entry.model}` is not there, or cut short"] if missing else []
