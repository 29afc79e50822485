"""A model's facts, wherever it lies: a directory, the Hub cache, or the Hub. Reads no weight."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from specserve.errors import FactError
from specserve.models.facts import ModelFacts
from specserve.models.folder import read_folder
from specserve.models.hub import find_snapshot, hub_cache, is_offline, read_from_hub

_HUB_ID = re.compile(
    r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_.-][\w.-]{0,95})?", re.ASCII
)
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,250}", re.ASCII)
_READS = "specserve reads directories and Hub ids of safetensors"


def read_model(
    model: str, *, revision: str | None = None, folder: Path | None = None, offline: bool = False
) -> ModelFacts:
    """What is known of a model: its configuration, its files, its tensors.

    A model that lies in the Hub cache with its weights is read from there, without asking the Hub.
    `folder`: where a relative path starts, by default the current directory. Raises FactError for
    a model that cannot be had, and for broken files.
    """
    place = local_path(model, folder=folder)
    if place is not None:
        if place.is_file():
            raise FactError(f"`{model}` is a file: {_READS}", cause="unsupported")
        return replace(read_folder(place, model, "directory"), revision=revision)
    refuse_no_hub_id(model, revision=revision)
    known = None
    if snapshot := find_snapshot(model, revision=revision, cache=hub_cache()):
        with suppress(FactError):  # no more than the rest of a download
            known = read_folder(snapshot, model, "cache")
            known = replace(known, revision=revision, commit=snapshot.name)
    is_alone = offline or is_offline()
    is_complete = known and known.weight_files and {*known.weight_files} <= known.files.keys()
    if known and (is_complete or (is_alone and known.config)):
        return known
    if not is_alone:
        return read_from_hub(model, revision=revision)
    at = f" at `{revision}`" if revision else ""
    why = "the Hub is not asked" if offline else "HF_HUB_OFFLINE is set"
    text = f"`{model}`{at} is not in the Hub cache, and {why}"
    raise FactError(text, hint="`specserve pull PROFILE` fetches it", cause="offline")


def local_path(model: str, *, folder: Path | None = None) -> Path | None:
    """The path that a profile's `model` means; None for a Hub id.

    vLLM too takes what exists for a path.
    """
    here = folder or Path.cwd()
    try:
        if model.startswith((".", "/", "~")):
            return here / Path(model).expanduser()
        return here / model if model and (here / model).exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no home
        return None


def refuse_no_hub_id(model: str, *, revision: str | None = None) -> None:
    """Raises FactError if these cannot be a repository and a revision of the Hub."""
    if re.search(r"(?i)^[a-z][a-z0-9+.-]*://|gguf(:|$)", model):
        raise FactError(f"`{model}` is a URL or GGUF: {_READS}", cause="unsupported")
    if not _HUB_ID.fullmatch(model):
        text, hint = f"`{model}` is neither a directory nor a Hub id", "a path starts with ./"
        raise FactError(text, hint=hint, cause="not_found")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise FactError(f"`{revision}` cannot be a revision of `{model}`", cause="not_found")
