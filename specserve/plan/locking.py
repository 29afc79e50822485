"""The models of a profile: which a launch reads, what is downloaded, and the lock beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.errors import FactError, UsageError
from specserve.files import write_named
from specserve.models.facts import ModelFacts, local_path, refuse_no_hub_id
from specserve.models.hub import (
    ModelDownload,
    find_snapshot,
    hub_cache,
    is_offline,
    plan_download,
    read_from_hub,
    read_model,
)
from specserve.models.lock import (
    Drift,
    Lock,
    drift_of,
    hashed,
    identity,
    lock_path,
    lock_text,
    read_lock,
)
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.speculation import METHODS


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One model, or tokenizer, that vLLM loads."""

    path: str
    """Where the profile says so."""
    model: str
    revision: str | None
    tokenizer_only: bool = False


def model_uses(profile: Profile, *, alternatives: bool = True) -> tuple[ModelUse, ...]:
    """Every model of a profile: target, tokenizer, drafts, and those of its alternatives.

    Source: vllm/config/model.py, `self.tokenizer_revision = self.revision`;
    vllm/config/speculative.py, `revision=self.revision,`, 0.32.
    """
    target, revision = profile.target, profile.engine.get("tokenizer_revision")
    uses = [ModelUse("target.model", target.model, target.revision)]
    tokenizer = target.tokenizer or target.model, revision or target.revision
    if tokenizer != (target.model, target.revision):
        path = "target.tokenizer" if target.tokenizer else "engine.tokenizer_revision"
        uses.append(ModelUse(path, *tokenizer, tokenizer_only=True))
    for path, block in profile.blocks.items():
        revision = block.keys.get("revision")
        if not alternatives and path != "speculation":
            continue
        if block.model and block.method != "custom_class":
            uses.append(ModelUse(f"{path}.model", block.model, revision))
        elif METHODS[block.method].in_target:
            uses.append(ModelUse(f"{path}.method", target.model, revision))
    return tuple(uses)


def downloads(profile: Profile, *, tell: Callable[[str], None]) -> tuple[ModelDownload, ...]:
    """What is to be fetched for a profile: a model at a commit once, a directory not at all.

    Raises FactError: a directory that is not there, a model that the Hub does not show.
    """
    found: dict[tuple[str, str], ModelDownload] = {}
    uses, cache = [*model_uses(profile, alternatives=False)], cache_of(profile)
    for key in ("hf_config_path", "generation_config"):  # of another repository, at that revision
        if (name := profile.engine.get(key)) not in (None, "auto", "vllm"):
            revision = profile.target.revision
            uses.append(ModelUse(f"engine.{key}", str(name), revision, tokenizer_only=True))
    by_branch = profile.speculation and profile.speculation.keys.get("use_heterogeneous_vocab")
    for use in sorted(uses, key=lambda use: use.tokenizer_only):  # whole repositories first
        place = local_path(use.model)
        if place is not None:
            if not place.is_dir():
                raise FactError(f"there is no directory `{place}`", cause="not_found")
            continue
        refuse_no_hub_id(use.model, revision=use.revision)
        if is_offline():
            text = f"`{use.model}` cannot be pulled: HF_HUB_OFFLINE is set"
            hint = "unset HF_HUB_OFFLINE: a download asks the Hub"
            raise FactError(text, hint=hint, cause="offline")
        tell(f"asking for {use.model}")
        facts = read_from_hub(use.model, revision=use.revision, cache=cache)
        download = plan_download(facts, cache=cache, weights=not use.tokenizer_only)
        if use.path == "speculation.model" and by_branch:
            # vLLM asks for the tokenizer of such a draft at `main`: the cache must know its commit
            # (vllm/v1/spec_decode/draft_model.py, `spec.draft_model_config.model,`, 0.32)
            download = replace(download, revision=None)
        found.setdefault((download.model, download.commit), download)
    return tuple(found.values())


def cache_of(profile: Profile) -> Path:
    """The Hub cache that the server of this profile will look into."""
    return hub_cache({**os.environ, **profile.env})


def lock_of(profile: Profile) -> Lock | None:
    """The lock beside a profile; None where there is none. Raises FactError for a bad one."""
    file = lock_path(profile.file)
    return read_lock(file) if file else None


def entries(profile: Profile, lock: Lock) -> list[tuple[ModelUse, ModelFacts | None]]:
    """Every model of a profile, and what the lock has of it at that revision."""
    return [(use, lock.find(use.model, revision=use.revision)) for use in model_uses(profile)]


def locked(profile: Profile, lock: Lock) -> Profile:
    """The profile with the commit of each model of the Hub as its revision; places stay.

    What the lock does not have keeps its own revision. A directory counts by its content.
    """
    known = {use.path: (use.model, entry) for use, entry in entries(profile, lock) if entry}
    commits = {path: entry.commit for path, (_, entry) in known.items() if entry.commit}

    def pinned(path: str, block: Speculation) -> Speculation:
        commit = commits.get(f"{path}.model") or commits.get(f"{path}.method")
        return replace(block, keys={**block.keys, "revision": commit}) if commit else block

    blocks = {path: pinned(path, block) for path, block in profile.blocks.items()}
    # vLLM would ask another repository of a tokenizer for the target's revision
    tokenizer = commits.get("target.tokenizer") or commits.get("engine.tokenizer_revision")
    revision = commits.get("target.model", profile.target.revision)
    return replace(
        profile,
        target=replace(profile.target, revision=revision),
        speculation=blocks.get("speculation"),
        alternatives={name: blocks[f"alternatives.{name}"] for name in profile.alternatives},
        engine={**profile.engine, "tokenizer_revision": tokenizer} if tokenizer else profile.engine,
        identities={model: identity(each) for model, each in known.values() if not each.commit},
    )


def offline_problems(profile: Profile, lock: Lock) -> list[str]:
    """Why a launch of this profile needs the Hub; nothing: HF_HUB_OFFLINE may be set.

    Every file of the lock must lie in the Hub cache at its commit, and every directory be there.
    """
    names = ("download_dir", "hf_config_path", "generation_config", "lora_modules")
    said, none = {**profile.engine, **profile.frontend}, (None, "auto", "vllm")
    problems = [
        f"`{name}` is not covered by the lock" for name in names if said.get(name) not in none
    ]
    cache, keys = cache_of(profile), profile.speculation.keys if profile.speculation else {}
    for use, entry in entries(replace(profile, alternatives={}), lock):
        if entry is None:
            problems.append(f"`{use.model}` is not in the lock")
            continue
        folder: Path | None = Path(use.model)
        if entry.commit:
            folder = find_snapshot(use.model, revision=entry.commit, cache=cache)
        if folder is None:
            problems.append(f"`{use.model}` is not in the Hub cache at {str(entry.commit)[:12]}")
            continue
        for name, file in entry.files.items():
            path = folder / name
            if not path.is_file() or file.size_bytes not in (None, path.stat().st_size):
                problems.append(f"missing, or of another size: `{name}` of `{entry.model}`")
        is_by_branch = use.path == "speculation.model" and keys.get("use_heterogeneous_vocab")
        if is_by_branch and find_snapshot(use.model, revision=None, cache=cache) is None:
            problems.append(f"vLLM reads the tokenizer of `{use.model}` at `main`")
    return problems


def lock_profile(profile: Profile) -> tuple[Lock, bool]:
    """Read every model of a profile and write the lock beside it, unless it says the same already.

    Returns the lock, and whether it was written. Raises FactError for a model that cannot be read,
    UsageError for a profile that is not a file.
    """
    file = lock_path(profile.file)
    if file is None or not Path(profile.file).is_file():
        raise UsageError("only a profile in a file can be locked", hint="write it to a file first")
    read: dict[tuple[str, str | None], ModelFacts] = {}
    cache = cache_of(profile)
    for use in model_uses(profile):
        place, name = local_path(use.model), use.model
        revision = use.revision if place is None else None  # a directory has no revisions
        if (use.model, revision) in read:
            continue
        if place is None and not is_offline():  # the commit of today, whatever the cache holds
            refuse_no_hub_id(use.model, revision=revision)
            facts = read_from_hub(use.model, revision=revision, cache=cache)
        else:
            facts = read_model(use.model, revision=revision, offline=is_offline(), cache=cache)
        if place is not None:
            name = str(place)
            if profile.was_relative(use.model):  # written relative: relative to the lock
                name = Path(os.path.relpath(place, file.parent)).as_posix()
                name = name if name.startswith("..") else f"./{name}"
        read[use.model, revision] = hashed(replace(facts, model=name, revision=revision))
    lock = Lock(file, tuple(read.values()))
    text = lock_text(lock.models)
    is_new = not file.is_file() or file.read_bytes() != text.encode()
    if is_new:
        write_named(file, text)
    return lock, is_new


def drifts_from(profile: Profile, lock: Lock) -> tuple[Drift, ...]:
    """Each model that is not as the lock says, in the order of the profile."""
    found: dict[tuple[str, str | None], Drift | None] = {}
    for use, entry in entries(profile, lock):
        if (use.model, use.revision) not in found:
            found[use.model, use.revision] = drift_of(entry, path=use.path, model=use.model)
    return tuple(drift for drift in found.values() if drift)
