"""A model of the Hub into the Hub cache: the files that vLLM reads, by the Hub's own library, which resumes.

Source: vllm/transformers_utils/repo_utils.py, `_WEIGHT_FILE_PATTERNS`, 0.32: vLLM reads every file but these, and of
these the ones that hold the weights.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound
from specserve.models.bounded import parse_object, read_regular
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.hubcache import COMMIT, DEFAULT_REVISION, repository_folder

MARGIN_BYTES = 64 << 20
"""Stays free on the disk, for logs and the like."""
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


def fetch_files(download: Download, *, cache: Path, stall_s: float) -> None:
    """Downloads what is missing, with the Hub library's own progress on a terminal; `stall_s`: of silence at most.

    Raises HubUnreachable, GatedModel, ModelNotFound, and FactError where a file has not the size it should have.
    """
    if download.missing:
        _snapshot(download, cache=cache, stall_s=stall_s)
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


def _snapshot(download: Download, *, cache: Path, stall_s: float) -> None:
    answer = _ask(download, cache=cache, stall_s=stall_s)
    if answer is None:
        return
    words, cause = str(answer.get("message")), answer.get("cause")
    if cause in ("gated", "not_found"):
        kind = GatedModel if cause == "gated" else ModelNotFound
        raise kind(f"`{download.model}` {words}", hint="see HF_TOKEN, and `hf auth login`")
    raise HubUnreachable(
        f"the download of `{download.model}` was cut off: {words}",
        hint="run it again: it goes on where it stopped",
    )


def _ask(download: Download, *, cache: Path, stall_s: float) -> dict[str, Any] | None:
    """The child's answer: None when all went well. It is killed when nothing moves, and when this is interrupted."""
    asked = {
        "model": download.model,
        "commit": download.commit,
        "cache": str(cache),
        "names": download.missing,
    }
    quiet = {} if sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "specserve.models.fetcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**quiet, **os.environ},
        start_new_session=True,
    ) as child:
        assert child.stdin and child.stdout
        try:
            child.stdin.write(json.dumps(asked).encode() + b"\n")
            child.stdin.flush()
            if not _ends(child, repository_folder(download.model, cache=cache), stall_s=stall_s):
                return {"message": f"nothing came for {stall_s:.0f} s"}
            answer: dict[str, Any] | None = json.loads(child.stdout.read() or '{"message": "it died"}')
            return answer
        except OSError as error:
            return {"message": str(error)}
        finally:
            child.kill()


def _ends(child: subprocess.Popen[bytes], repository: Path, *, stall_s: float) -> bool:
    """Whether the child ends by itself; False when no byte was written for so long."""
    state, moved = -1, time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(1.0, stall_s / 4))
            return True
        now = _written(repository)
        if now != state:
            state, moved = now, time.monotonic()
        elif time.monotonic() - moved > stall_s:
            return False


def _written(repository: Path) -> int:
    """How much of a repository lies on the disk, half a file included."""
    total = 0
    with suppress(OSError), os.scandir(repository / "blobs") as entries:
        for entry in entries:
            with suppress(OSError):
                total += 1 + entry.stat().st_size
    return total


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
