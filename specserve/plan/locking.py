"""A profile and the lock beside it: made, applied, compared with today's models."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specserve.errors import FactError, UsageError
from specserve.files import write_named
from specserve.models.facts import ModelFacts
from specserve.models.hub import find_snapshot, hub_cache, is_offline, read_from_hub
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
from specserve.plan.uses import ModelUse, model_uses
from specserve.profile.schema import Profile, Speculation
from specserve.profile.source import recall


def lock_of(profile: Profile) -> Lock | None:
    """The lock beside a profile; None where there is none. Raises FactError for one that cannot be used."""
    file = lock_path(profile.file)
    return read_lock(file) if file else None


def entries(profile: Profile, lock: Lock) -> list[tuple[ModelUse, ModelFacts | None, str]]:
    """Every model of a profile, what the lock has of it (None: nothing, or another revision), and what that is."""
    uses = model_uses(profile)
    found = [lock.find(use.model, revision=use.revision) for use in uses]
    return [(use, entry, identity(entry) if entry else "") for use, entry in zip(uses, found, strict=True)]


def not_locked(profile: Profile, lock: Lock) -> tuple[ModelUse, ...]:
    """The models of a profile that its lock does not have, or has for another revision."""
    return tuple(use for use, entry, _ in entries(profile, lock) if entry is None)


def locked(profile: Profile, lock: Lock) -> Profile:
    """The profile with the commit of each model of the Hub as its revision; places stay where they are.

    What the lock does not have keeps its own revision. The fingerprint then rests on the locked contents.
    """
    identities: dict[tuple[str, str | None], str] = {}
    commits: dict[str, str] = {}
    for use, entry, name in entries(profile, lock):
        if entry:
            identities |= dict.fromkeys(((use.model, use.revision), (use.model, entry.commit)), name)
            commits |= {use.path: entry.commit} if entry.commit else {}
    # vLLM would ask another repository of a tokenizer for the target's revision
    tokenizer = commits.get("target.tokenizer") or commits.get("engine.tokenizer_revision")

    def pinned(block: Speculation, path: str) -> Speculation:
        commit = commits.get(f"{path}.model") or commits.get(f"{path}.method")
        return replace(block, keys={**block.keys, "revision": commit}) if commit else block

    return replace(
        profile,
        target=replace(profile.target, revision=commits.get("target.model", profile.target.revision)),
        speculation=pinned(profile.speculation, "speculation") if profile.speculation else None,
        alternatives={
            name: pinned(block, f"alternatives.{name}") for name, block in profile.alternatives.items()
        },
        engine={**profile.engine, "tokenizer_revision": tokenizer} if tokenizer else profile.engine,
        identities=identities,
    )


def offline_problems(profile: Profile, lock: Lock | None) -> tuple[str, ...]:
    """Why a launch of this profile could not do without the Hub; nothing: HF_HUB_OFFLINE may be set.

    Every file of the lock must lie in the Hub cache at its locked commit, and every directory must be there.
    """
    return tuple(_problems(profile, lock))


_PULL = "`specserve pull`, where the Hub can be reached, downloads what is missing"
_RESTORE = "restore the directory, or run `specserve lock` if the change is meant"


def _problems(profile: Profile, lock: Lock | None) -> dict[str, str]:
    """The same, each with the way out; empty if there is none."""
    if lock is None:
        return {"there is no lock": ""}
    problems = dict.fromkeys(_elsewhere(profile), "")
    cache = hub_cache({**os.environ, **profile.env})
    for use, entry, _ in entries(replace(profile, alternatives={}), lock):
        if entry is None:
            problems[f"`{use.model}` is not in the lock"] = ""
        elif entry.commit is None:
            problems |= dict.fromkeys(_unlike(entry, Path(use.model)), _RESTORE)
        else:
            snapshot = find_snapshot(use.model, revision=entry.commit, cache=cache)
            if snapshot is None:
                problems[f"`{use.model}` is not in the Hub cache at {entry.commit[:12]}"] = _PULL
            else:
                problems |= dict.fromkeys(_unlike(entry, snapshot), _PULL)
    return problems


def _elsewhere(profile: Profile) -> list[str]:
    """What a launch reads from the Hub besides its models, and what makes it look elsewhere for them."""
    problems = []
    engine, block = profile.engine, profile.speculation
    if engine.get("download_dir"):
        problems.append("`engine.download_dir` keeps weights outside of the Hub cache")
    for key, usual in (("hf_config_path", ()), ("generation_config", ("auto", "vllm"))):
        value = engine.get(key)
        if value is not None and value not in usual and not Path(str(value)).exists():
            problems.append(f"`engine.{key}` names a file or model that the lock does not have")
    if profile.frontend.get("lora_modules"):
        problems.append("adapters are not in the lock")
    if block and block.keys.get("use_heterogeneous_vocab") and block.model and not is_path(block.model):
        # vllm/v1/spec_decode/draft_model.py asks for the draft's tokenizer without a revision
        cache = hub_cache({**os.environ, **profile.env})
        snapshot = find_snapshot(block.model, revision=None, cache=cache)
        if snapshot is None or not (snapshot / "tokenizer_config.json").is_file():
            problems.append(
                f"vLLM reads the tokenizer of `{block.model}` at `main`, which is not in the Hub cache"
            )
    return problems


def _unlike(entry: ModelFacts, folder: Path) -> list[str]:
    """The files of a model that are not in a folder, and those that have another size there."""
    missing, resized = [], []
    for name in dict.fromkeys((*entry.files, *entry.weight_files)):
        locked_bytes = entry.files[name].size_bytes if name in entry.files else None
        try:
            size = (folder / name).stat().st_size
        except OSError:
            missing.append(name)
        else:
            resized += [name] if locked_bytes not in (None, size) else []
    said = []
    for names, one, several in (
        (missing, "is missing", "are missing"),
        (resized, "has another size than in the lock", "have another size than in the lock"),
    ):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        said += [f"`{names[0]}`{more} of `{entry.model}` {several if more else one}"] if names else []
    return said


_Key = tuple[str, str | None]
"""A model and the revision that is asked for."""


@dataclass(frozen=True, slots=True)
class Locked:
    """What was locked."""

    file: Path
    models: tuple[ModelFacts, ...]
    changed: bool
    """Whether the file had to be written."""


def lock_profile(
    profile: Profile, *, offline: bool = False, tell: Callable[[str], None] = lambda _: None
) -> Locked:
    """Reads every model of a profile and writes the lock beside it, unless it says the same already.

    Raises FactError for a model that cannot be read, UsageError for a profile that is not a file.
    """
    file = lock_path(profile.file)
    if file is None or not Path(profile.file).is_file():
        raise UsageError("only a profile in a file can be locked", hint="write it to a file first")
    read: dict[_Key, ModelFacts] = {}
    for use in model_uses(profile):
        key = _key(use)
        if key not in read or (not use.tokenizer_only and not read[key].config):
            tell(f"reading {use.model}")
            read[key] = _read_today(use, offline=offline)
    named = (
        replace(facts, model=_recorded(profile, model, file), revision=revision)
        for (model, revision), facts in read.items()
    )
    return _write(file, tuple(map(hashed, named)))


def _key(use: ModelUse) -> _Key:
    """A directory has no revisions."""
    return use.model, None if local_path(use.model) is not None else use.revision


def _read_today(use: ModelUse, *, offline: bool) -> ModelFacts:
    """A model as it is now: of the Hub the commit that the revision has today, whatever the cache holds."""
    if local_path(use.model) is None and not offline:
        refuse_no_hub_id(use.model, revision=use.revision)
        if not is_offline():
            return read_from_hub(use.model, revision=use.revision)
    offline = offline or is_offline()
    return read_model(use.model, revision=use.revision, offline=offline)


def _recorded(profile: Profile, model: str, file: Path) -> str:
    """A model's name in the lock: a path that the profile wrote relative is relative to the lock."""
    place = local_path(model)
    if place is None:
        return model
    if _written(profile, model).startswith(("/", "~")):
        return str(place)
    relative = Path(os.path.relpath(place, file.parent)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def _written(profile: Profile, model: str) -> str:
    """How the profile's file spells a path, which is absolute by now; empty if that cannot be seen."""
    spans = (profile.spans.get(use.path) for use in model_uses(profile) if use.model == model)
    span = next(filter(None, spans), None)
    try:
        lines = recall(span.file).decode().splitlines() if span else []
        return lines[span.line - 1][span.column - 1 :].lstrip("'\"") if span else ""
    except (OSError, ValueError, IndexError):
        return ""


def _write(file: Path, models: tuple[ModelFacts, ...]) -> Locked:
    """Leaves a lock that says the same as it is, so that its date is that of the last change."""
    with suppress(FactError):
        old = read_lock(file)
        if old and file.read_text(encoding="utf-8") == lock_text(models, created=old.created):
            return Locked(file, models, changed=False)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    write_named(file, lock_text(models, created=today))
    return Locked(file, models, changed=True)


def drifts_from(profile: Profile, lock: Lock, *, ask_hub: bool) -> tuple[Drift, ...]:
    """Each model that is not as the lock says, in the order of the profile. Raises FactError.

    `ask_hub`: whether branches have moved is asked.
    """
    seen: dict[tuple[str, str | None], Drift | None] = {}
    for use in model_uses(profile):
        key = (use.model, use.revision)
        if key not in seen:
            entry = lock.find(use.model, revision=use.revision)
            seen[key] = drift_of(entry, path=use.path, model=use.model, ask_hub=ask_hub)
    return tuple(drift for drift in seen.values() if drift)


def unused(profile: Profile, lock: Lock) -> tuple[str, ...]:
    """The models of a lock that its profile does not name any more."""
    used = [lock.find(use.model, revision=use.revision) for use in model_uses(profile)]
    return tuple(entry.model for entry in lock.models if entry not in used)


LockState = Literal["holds", "missing", "stale"]
_DRIFTS = {
    "unlocked": "is not in the lock",
    "changed": "is not as in the lock",
    "moved": "has moved on the Hub",
}


def lock_problems(profile: Profile, *, ask_hub: bool) -> tuple[LockState, list[str]]:
    """Whether the lock of a profile is there and still right, and what is not. A branch that moved is a note."""
    try:
        found = lock_of(profile)
    except FactError as error:
        return "stale", [f"{profile.file}: {error.message}"]
    if found is None:
        return "missing", [f"{profile.file}: there is no lock"]
    lines = list[str]()
    state: LockState = "holds"
    for drift in drifts_from(profile, found, ask_hub=ask_hub):
        detail = f": {', '.join(drift.detail)}" if drift.detail else ""
        note = "note: " if drift.kind == "moved" else ""
        place = f"{profile.name}, {profile.span(drift.path)}: {note}`{drift.model}`"
        lines.append(f"{place} {_DRIFTS[drift.kind]}{detail}")
        state = state if drift.kind == "moved" else "stale"
    absent = unused(profile, found)
    lines += [f"{profile.file}: `{model}` of the lock is not in the profile" for model in absent]
    return ("stale" if absent else state), lines


def at_lock(profile: Profile, *, is_needed: bool | None) -> tuple[Profile, Lock | None]:
    """The profile at the commits of the lock beside it, and that lock; False: as if there were none.

    Raises FactError if a lock is needed and fails.
    """
    lock = None if is_needed is False else lock_of(profile)
    if lock is None:
        if is_needed:
            raise FactError(f"`{profile.file}` has no lock file", hint="`specserve lock` writes it")
        return profile, None
    missing = not_locked(profile, lock) if is_needed else ()
    if missing:
        raise FactError(f"`{missing[0].model}` is not in the lock", hint="`specserve lock` records it")
    return locked(profile, lock), lock


_NAME = "--served-model-name"


def without_hub(plan: LaunchPlan, profile: Profile, lock: Lock | None, *, needed: bool) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE if the lock is complete and the cache has it, under the names of the Hub.

    Offline, vLLM replaces a Hub id by the path of its snapshot, and its metrics would be labelled with that path.
    Source: vllm/engine/arg_utils.py, `HF_HUB_OFFLINE is True, replace model_id`, 0.26-0.33. Raises FactError if the
    Hub must not be `needed` and is.
    """
    if lock is None:
        return plan
    problems = _problems(profile, lock)
    if problems and needed:
        hint = "; ".join(dict.fromkeys(filter(None, problems.values())))
        raise FactError("some files are not as the lock says", hint=hint or None, causes=tuple(problems))
    return plan if problems else offline(plan, why="the cache has everything that the lock lists")


def offline(plan: LaunchPlan, *, why: str) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE and the served name that it has with the Hub."""
    plan = plan.with_env("HF_HUB_OFFLINE", "1", why)
    named = any(word == _NAME or word.startswith(f"{_NAME}=") for word in plan.argv)
    if named or local_path(plan.model) is not None:
        return plan
    why = "offline, vLLM would label its metrics with a path of the cache"
    return plan.with_option(_NAME, plan.model, why=why)
