"""The lock of a profile, made from its models as they are today. Writes the lock, and no other file of the user's."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specserve import __version__
from specserve.errors import FactError, UsageError
from specserve.models.facts import ModelFacts
from specserve.models.lock import hashed, label, lock_path, lock_text, read_lock
from specserve.models.read import local_path, read_model, refuse_no_hub_id
from specserve.models.tokenizercompare import TokenizerComparison
from specserve.plan.uses import ModelUse, draft_use, model_uses, tokenizer_use
from specserve.profile.schema import Profile

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Locked:
    """What was locked."""

    file: Path
    models: tuple[ModelFacts, ...]
    changed: bool
    """Whether the file had to be written."""


def lock_profile(profile: Profile, *, offline: bool = False, tell: Tell = lambda _: None) -> Locked:
    """Reads every model of a profile and writes the lock beside it, unless it says the same already.

    Raises FactError for a model that cannot be read, UsageError for a profile that is no file.
    """
    file = lock_path(profile.file)
    if file is None or not Path(profile.file).is_file():
        raise UsageError("only a profile in a file has a place for its lock", hint="write it to a file first")
    read: dict[tuple[str, str | None], ModelFacts] = {}
    for use in model_uses(profile):
        key = _key(use)
        if key not in read or (not use.tokenizer_only and not read[key].config):
            tell(f"reading {use.model}")
            read[key] = read_fresh(use, offline=offline)
    names = {key: _recorded(profile, key[0], file=file) for key in read}
    models = tuple(_entry(facts, key=key, name=names[key]) for key, facts in read.items())
    tell("comparing tokenizers")
    comparisons = _comparisons(profile, read, names)
    return _write(file, models, comparisons=comparisons, vllm=profile.vllm)


def _key(use: ModelUse) -> tuple[str, str | None]:
    """A directory has no revisions."""
    return use.model, None if local_path(use.model) is not None else use.revision


def read_fresh(use: ModelUse, *, offline: bool) -> ModelFacts:
    """A model as it is now: of the Hub the commit that the revision has today, whatever the cache holds."""
    need_config = not use.tokenizer_only
    if offline or local_path(use.model) is not None:
        facts = read_model(use.model, revision=use.revision, offline=offline, need_config=need_config)
    else:
        from specserve.models.hub import read_from_hub
        from specserve.models.hubcache import is_offline

        refuse_no_hub_id(use.model, revision=use.revision)
        if is_offline():
            return read_fresh(use, offline=True)
        facts = read_from_hub(use.model, revision=use.revision, need_config=need_config)
    return facts


def _entry(facts: ModelFacts, *, key: tuple[str, str | None], name: str) -> ModelFacts:
    """The facts as they are locked: no word of where on this machine they were read."""
    place = local_path(key[0])
    prefix = f"{place}/" if place is not None else "\0"
    entry = replace(
        facts,
        model=name,
        revision=key[1],
        notes=tuple(note.replace(prefix, "") for note in facts.notes),
        broken={file: why.replace(prefix, "") for file, why in facts.broken.items()},
    )
    return hashed(entry)


def _recorded(profile: Profile, model: str, *, file: Path) -> str:
    """A model's name in the lock: a path that the profile wrote relative is relative to the lock."""
    place = local_path(model)
    if place is None:
        return model
    if _written(profile, model).startswith(("/", "~")):
        return str(place)
    relative = Path(os.path.relpath(place, file.parent)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def _written(profile: Profile, model: str) -> str:
    """How the profile's file spells a path, which is absolute by now; empty where that cannot be seen."""
    for use in model_uses(profile):
        span = profile.spans.get(use.path)
        if use.model != model or span is None:
            continue
        try:
            with Path(span.file).open(encoding="utf-8") as stream:
                lines = stream.read().splitlines()
            return lines[span.line - 1][span.column - 1 :].lstrip("'\"")
        except (OSError, ValueError, IndexError):
            return ""
    return ""


def _comparisons(
    profile: Profile,
    read: Mapping[tuple[str, str | None], ModelFacts],
    names: Mapping[tuple[str, str | None], str],
) -> dict[tuple[str, str], TokenizerComparison]:
    """The target's tokenizer, by default the target's own, against the target and against each draft model."""
    from specserve.models.tokenizercompare import compare

    def name(key: tuple[str, str | None]) -> str:
        return label(names[key], key[1])

    target, own = _key(model_uses(profile)[0]), _key(tokenizer_use(profile))
    apart = read[own] if own != target else None
    found = {(name(own), name(target)): compare(apart, read[target])} if apart else {}
    blocks = {"speculation": profile.speculation, **profile.alternatives}
    for path, block in blocks.items():
        draft_at = draft_use(profile, block, path=path) if block and block.method == "draft_model" else None
        if draft_at:
            draft = _key(draft_at)
            found[name(own), name(draft)] = compare(read[target], read[draft], tokenizer=apart)
    return found


def _write(
    file: Path,
    models: tuple[ModelFacts, ...],
    *,
    comparisons: Mapping[tuple[str, str], TokenizerComparison],
    vllm: str | None,
) -> Locked:
    """Leaves a lock that says the same as it is, so that its date is that of the last change."""
    try:
        old = read_lock(file)
    except FactError:
        old = None
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if old:
        same = lock_text(
            models, comparisons=comparisons, created=old.created, specserve=old.specserve, vllm=vllm
        )
        if file.read_text(encoding="utf-8") == same:
            return Locked(file, models, changed=False)
    text = lock_text(models, comparisons=comparisons, created=today, specserve=__version__, vllm=vllm)
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except OSError as error:
        raise FactError(f"cannot write `{file}`: {(error.strerror or str(error)).lower()}") from error
    return Locked(file, models, changed=True)
