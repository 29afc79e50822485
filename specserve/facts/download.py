"""A model of the Hub into the Hub cache: the files that vLLM reads, by the Hub's own library, which resumes.

Source: vllm/transformers_utils/repo_utils.py, `_WEIGHT_FILE_PATTERNS`, 0.32: vLLM reads every file but these, and of
these the ones that hold the weights.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound
from specserve.facts.bounded import parse_object, read_regular
from specserve.facts.hubcache import COMMIT, DEFAULT_REVISION, repository_folder
from specserve.facts.model import ModelFacts, ModelFile

MARGIN_BYTES = 1 << 30
"""Stays free on the disk: logs and compilation caches need some of it too."""
_NOT_READ = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.mp3", "*.mp4", "*.wav", "*.flac", "*.parquet", "*.arrow",
    "*.ipynb", "*.zip", "*.tar*",
)  # fmt: skip
_MAX_TREE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """What is to be fetched of one model."""

    model: str
    commit: str
    revision: str | None
    folder: Path
    """The snapshot in the cache."""
    files: dict[str, ModelFile]
    missing: tuple[str, ...]

    @property
    def missing_bytes(self) -> int:
        """What is still to come; files of unknown size count nothing."""
        return sum(self.files[name].size_bytes or 0 for name in self.missing)

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(file.size_bytes or 0 for file in self.files.values())


def plan_download(facts: ModelFacts, *, cache: Path) -> Download:
    """The files of a model that was read on the Hub, and those of them that the cache does not have."""
    assert facts.commit is not None
    folder = repository_folder(facts.model, cache=cache) / "snapshots" / facts.commit
    files = {name: file for name, file in facts.files.items() if _is_read(name) or name in facts.weight_files}
    missing = tuple(name for name, file in files.items() if not _is_there(folder / name, file))
    return Download(facts.model, facts.commit, facts.revision, folder, files, missing)


def _is_read(name: str) -> bool:
    return not any(fnmatchcase(name, pattern) for pattern in _NOT_READ)


def _is_there(path: Path, file: ModelFile) -> bool:
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return file.size_bytes is None or size == file.size_bytes


def refuse_full_disk(downloads: Iterable[Download], *, cache: Path) -> None:
    """Raises FactError where the disk of the cache cannot take these downloads."""
    needed = sum(download.missing_bytes for download in downloads)
    place = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    if needed and needed + MARGIN_BYTES > free:
        raise FactError(
            f"{_gb(needed)} are to be downloaded, and the disk of `{cache}` has {_gb(free)} free",
            hint="HF_HUB_CACHE names another place; `hf cache` shows what can go",
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def fetch_files(download: Download, *, cache: Path) -> None:
    """Downloads what is missing, with the Hub library's own progress on a terminal.

    Raises HubUnreachable, GatedModel, ModelNotFound, and FactError where a file has not the size it should have.
    """
    if download.missing:
        _snapshot(download, cache=cache)
        wrong = [
            name for name in download.missing if not _is_there(download.folder / name, download.files[name])
        ]
        if wrong:
            raise FactError(
                f"`{wrong[0]}` of `{download.model}` came with another size than the Hub said",
                hint="remove it from the Hub cache and pull again",
            )
    _note_revision(download, cache=cache)
    forget_partial_listing(download.folder)


def _snapshot(download: Download, *, cache: Path) -> None:
    from huggingface_hub import errors, snapshot_download

    refused: Any = (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    network: Any = (errors.HfHubHTTPError.__bases__[0], OSError, ValueError, RuntimeError)
    try:
        snapshot_download(
            download.model,
            revision=download.commit,
            cache_dir=cache,
            allow_patterns=[glob.escape(name) for name in download.missing],
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            library_name="specserve",
        )
    except refused as error:
        gated = isinstance(error, errors.GatedRepoError)
        kind, words = (GatedModel, "is gated") if gated else (ModelNotFound, "is not there, or not for you")
        raise kind(f"`{download.model}` {words}", hint="see HF_TOKEN, and `hf auth login`") from error
    except network as error:
        raise HubUnreachable(
            f"the download of `{download.model}` was cut off: {str(error).strip().splitlines()[0] or type(error)}",
            hint="run it again: it goes on where it stopped",
        ) from error


def _note_revision(download: Download, *, cache: Path) -> None:
    """Lets an offline start find the commit by its branch, as the Hub library does; a ref that is there stays."""
    ref = repository_folder(download.model, cache=cache) / "refs" / (download.revision or DEFAULT_REVISION)
    if COMMIT.fullmatch(ref.name) or ref.exists():
        return
    with suppress(OSError):
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(download.commit, encoding="ascii")


def forget_partial_listing(folder: Path) -> None:
    """Removes the Hub library's listing of a snapshot that was fetched in part.

    With it the library refuses such a snapshot offline, and vLLM loads a draft by it: huggingface_hub 2.4,
    _snapshot_download.py, `_raise_if_incomplete_snapshot`. It is written anew whenever the Hub is asked.
    """
    if missing_of_listing(folder):
        with suppress(OSError):
            _listing_file(folder).unlink()


def missing_of_listing(folder: Path) -> tuple[str, ...]:
    """The weight files that the Hub library expects in a snapshot and that are not there."""
    try:
        listing = parse_object(
            read_regular(_listing_file(folder), limit_bytes=_MAX_TREE_BYTES), where="the listing"
        )
    except FactError:
        return ()
    files = listing.get("files")
    names = files if isinstance(files, dict) else {}
    return tuple(name for name in names if not _is_read(name) and not os.path.lexists(folder / name))


def _listing_file(folder: Path) -> Path:
    return folder.parents[1] / "trees" / f"{folder.name}.json"
