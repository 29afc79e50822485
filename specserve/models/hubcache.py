"""The Hub cache on this machine by its documented layout, and specserve's own beside it. Asks no Hub.

Importing huggingface_hub for the same answers would take 0.3 s.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specserve import __version__
from specserve.errors import FactError
from specserve.models.facts import ModelFacts, ModelFile, from_record, to_record
from specserve.models.files import parse_object, read_regular

COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """One commit of a repository in a cache; some of its files may be absent."""

    folder: Path
    commit: str


def hub_cache(env: Mapping[str, str] = os.environ) -> Path:
    """Where the Hub library keeps its files, by these environment variables.

    Source: huggingface_hub 2.4, constants.py, `HF_HUB_CACHE`.
    """
    cache_home = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = env.get("HF_HOME") or f"{cache_home}/huggingface"
    place = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(place)))  # noqa: PTH111 - Path's form raises without a home


def is_offline(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment forbids the Hub: HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE."""
    return (env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def repository_folder(model: str, *, cache: Path) -> Path:
    """Where a cache keeps a Hub id."""
    return cache / ("models--" + model.replace("/", "--"))


def find_snapshot(model: str, *, revision: str | None, cache: Path) -> CachedSnapshot | None:
    """The cached snapshot of a Hub id at a commit, or at the commit that a branch had when it was fetched.

    Source: huggingface_hub 2.4, file_download.py, `try_to_load_from_cache`.
    """
    repository = repository_folder(model, cache=cache)
    commit = _commit_of(repository, revision)
    folder = repository / "snapshots" / str(commit)
    return CachedSnapshot(folder, commit) if commit and folder.is_dir() else None


def _commit_of(repository: Path, revision: str | None) -> str | None:
    wanted = revision or DEFAULT_REVISION
    if COMMIT.fullmatch(wanted):
        return wanted
    try:
        text = read_regular(repository / "refs" / wanted, limit_bytes=200).decode("ascii").strip()
    except (FactError, ValueError):
        return None
    return text if COMMIT.fullmatch(text) else None


def is_complete(facts: ModelFacts) -> bool:
    """Whether all weight files of a snapshot are there."""
    return bool(facts.weight_files) and all(name in facts.files for name in facts.weight_files)


_FORMAT = f"2 {__version__}"
"""A newer specserve may know what an older one noted as unknown."""
_MAX_RECORD_BYTES = 64 << 20


def fact_cache() -> Path:
    """`SPECSERVE_CACHE_DIR`, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get("SPECSERVE_CACHE_DIR")
    return Path(named) if named else user_cache_path("specserve")


def own_cache() -> Path:
    """A second Hub cache, with small files and facts: vLLM would take such a snapshot in the first for complete."""
    return fact_cache() / "hub"


def recall(model: str, *, revision: str | None, cache: Path) -> ModelFacts | None:
    """What was read of a Hub id at a commit, or at the commit that a branch had then. Asks no Hub.

    `cache`: the Hub cache, whose files are used too.
    """
    repository = repository_folder(model, cache=own_cache())
    commit = _commit_of(repository, revision)
    record = repository / "facts" / f"{commit}.json"
    try:
        content = parse_object(read_regular(record, limit_bytes=_MAX_RECORD_BYTES), where=record.name)
        facts = from_record(content.get("facts"), origin="cache")
    except FactError:
        return None
    if content.get("format") != _FORMAT or facts.commit != commit or facts.model != model:
        return None
    return replace(facts, files=with_paths(facts.files, model=model, commit=str(commit), cache=cache))


def with_paths(
    files: Mapping[str, ModelFile], *, model: str, commit: str, cache: Path
) -> dict[str, ModelFile]:
    """The files of a commit, each with its place in the Hub cache or in our own, if it lies there in its full size."""
    folders = [repository_folder(model, cache=place) / "snapshots" / commit for place in (cache, own_cache())]
    return {
        name: replace(
            file, path=next((folder / name for folder in folders if is_there(folder / name, file)), None)
        )
        for name, file in files.items()
    }


def is_there(path: Path, file: ModelFile) -> bool:
    """Whether a file lies there, in the size that the Hub says."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return file.size_bytes is None or size == file.size_bytes


def keep(facts: ModelFacts) -> None:
    """Writes what `recall` finds. Raises OSError."""
    repository = repository_folder(facts.model, cache=own_cache())
    record = {"format": _FORMAT, "facts": to_record(facts)}
    _write(repository / "facts" / f"{facts.commit}.json", json.dumps(record, sort_keys=True))
    if facts.revision != facts.commit:
        with suppress(OSError):  # a branch `a` and a branch `a/b` cannot both be files
            _write(repository / "refs" / (facts.revision or DEFAULT_REVISION), str(facts.commit))


def _write(file: Path, text: str) -> None:
    """The whole file or nothing: two checks may run at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
