"""A model's facts, wherever it lies: a directory, the Hub cache, or the Hub. Reads no weight."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from specserve.errors import FactError, ModelNotFound, NotCached, UnsupportedModel
from specserve.models.assemble import read_folder
from specserve.models.facts import ModelFacts
from specserve.models.hubcache import Snapshot, find_snapshot, hub_cache, is_complete, is_offline

_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_.-][\w.-]{0,95})?", re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,250}", re.ASCII)


def read_model(
    model: str,
    *,
    revision: str | None = None,
    folder: Path | None = None,
    offline: bool = False,
    cache: Path | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """What is known of a model: its configuration, its files, its tensors.

    A model that stands in the Hub cache with its weights is read from there, without asking the Hub. `folder`: where
    a relative path starts, by default the current directory; `cache`: another Hub cache than the environment's;
    `need_config`: False for what has a tokenizer and perhaps no model.
    Raises FactError: ModelNotFound, GatedModel, NotCached, HubUnreachable, UnsupportedModel, or for broken files.
    """
    place = local_path(model, folder=folder)
    if place is not None:
        if place.is_file():
            raise UnsupportedModel(f"`{model}` is a file: specserve reads directories of models")
        return read_folder(place, model=model, origin="directory", revision=revision, need_config=need_config)
    refuse_no_hub_id(model, revision=revision)
    snapshot = find_snapshot(model, revision=revision, cache=cache or hub_cache())
    cached = (
        _read_cached(snapshot, model=model, revision=revision, need_config=need_config) if snapshot else None
    )
    if cached and (is_complete(cached) or not need_config):
        return cached
    if offline or is_offline():
        from specserve.models.hub import recall

        known = recall(model, revision=cached.commit if cached else revision) or cached
        if known is None:
            raise _not_cached(model, revision, by_environment=not offline)
        return replace(known, revision=revision)
    from specserve.models.hub import read_from_hub

    return read_from_hub(model, revision=revision, need_config=need_config, cache=cache)


def local_path(model: str, *, folder: Path | None = None) -> Path | None:
    """The path that a profile's `model` means; None for a Hub id. vLLM too takes what exists for a path."""
    here = folder or Path.cwd()
    try:
        if model.startswith((".", "/", "~")):
            return here / Path(model).expanduser()
        return here / model if model and (here / model).exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no home
        return None


def refuse_no_hub_id(model: str, *, revision: str | None = None) -> None:
    """Raises FactError where these cannot be a repository and a revision of the Hub."""
    if _SCHEME.match(model):
        raise UnsupportedModel(f"`{model}` is an address: specserve reads directories and the Hub")
    if re.search(r"(?i)gguf(:|$)|\.gguf$", model):
        raise UnsupportedModel(f"`{model}` is a GGUF model: specserve reads safetensors")
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"`{model}` is neither a directory nor a Hub id",
            hint="a Hub id is ORGANISATION/NAME; a path starts with ./",
        )
    if revision is not None and not _REVISION.fullmatch(revision):
        raise ModelNotFound(f"`{revision}` cannot be a revision of `{model}`")


def _read_cached(
    snapshot: Snapshot, *, model: str, revision: str | None, need_config: bool
) -> ModelFacts | None:
    try:
        return read_folder(
            snapshot.folder,
            model=model,
            origin="cache",
            revision=revision,
            commit=snapshot.commit,
            need_config=need_config,
        )
    except FactError:
        return None  # without a readable configuration it is no more than the rest of a download


def _not_cached(model: str, revision: str | None, *, by_environment: bool) -> NotCached:
    at = f" at `{revision}`" if revision else ""
    why = "HF_HUB_OFFLINE is set" if by_environment else "the Hub is not asked"
    first = "unset HF_HUB_OFFLINE; then " if by_environment else ""
    return NotCached(
        f"`{model}`{at} is not in the Hub cache, and {why}",
        hint=f"{first}`specserve pull PROFILE` downloads it; `specserve lock PROFILE` records what check needs to know",
    )
