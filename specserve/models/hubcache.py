"""The Hub cache on this machine, by its documented layout: refs, snapshots, blobs. Never asks the Hub.

Importing huggingface_hub for the same answer would take 0.3 s. Source: huggingface_hub 2.4, constants.py,
`HF_HUB_CACHE`, and file_download.py, `try_to_load_from_cache`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import FactError
from specserve.models.bounded import read_regular
from specserve.models.facts import ModelFacts

COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository in the cache; some of its files may be absent."""

    folder: Path
    commit: str


def hub_cache(env: Mapping[str, str] = os.environ) -> Path:
    """Where the Hub library keeps its files, by these environment variables."""
    cache_home = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = env.get("HF_HOME") or f"{cache_home}/huggingface"
    place = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(place)))  # noqa: PTH111 - Path's form raises without a home


def is_offline(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment forbids the Hub: HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE."""
    return (env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def find_snapshot(model: str, *, revision: str | None, cache: Path) -> Snapshot | None:
    """The cached snapshot of a Hub id at a commit, or at the commit that a branch had when it was fetched."""
    repository = repository_folder(model, cache=cache)
    wanted = revision or DEFAULT_REVISION
    commit = wanted if COMMIT.fullmatch(wanted) else _commit_of(repository / "refs" / wanted)
    if commit is None:
        return None
    folder = repository / "snapshots" / commit
    return Snapshot(folder, commit) if folder.is_dir() else None


def repository_folder(model: str, *, cache: Path) -> Path:
    """Where a cache keeps a Hub id."""
    return cache / ("models--" + model.replace("/", "--"))


def _commit_of(ref: Path) -> str | None:
    try:
        text = read_regular(ref, limit_bytes=200).decode("ascii").strip()
    except (FactError, UnicodeDecodeError, ValueError):
        return None
    return text if COMMIT.fullmatch(text) else None


def is_complete(facts: ModelFacts) -> bool:
    """Whether a snapshot has its weights, every one of them: a download may have been cut off, or never meant them."""
    return bool(facts.weight_files) and all(name in facts.files for name in facts.weight_files)
