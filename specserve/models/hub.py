"""What the Hub says of a model, and downloads.

Whatever asks the Hub runs in a child (hubchild.py): the Hub library bounds the silence of a server, but neither the
time nor the bytes of an answer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.files import MAX_SMALL_BYTES, parse_object, read_regular
from specserve.models.hubcache import (
    COMMIT,
    DEFAULT_REVISION,
    hub_cache,
    is_there,
    own_cache,
    recall,
    repository_folder,
)

_DEFAULT_TIMEOUT_S = 10
_MEMORY_BYTES = 2 << 30
"""For reading facts: the library takes an answer of any length into memory."""
_ANSWERS = 12
"""Reading one model may take as long as so many answers that come at the last moment."""


def timeout_s() -> int:
    """How long the Hub may be silent: HF_HUB_DOWNLOAD_TIMEOUT, the Hub library's own variable."""
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return int(text) if text.isdigit() and 0 < int(text) <= 3600 else _DEFAULT_TIMEOUT_S


def read_from_hub(
    model: str, *, revision: str | None = None, need_config: bool = True, cache: Path | None = None
) -> ModelFacts:
    """What the Hub says of a revision; what was read of its commit before is not asked for again.

    `cache`: the Hub cache, if it is not the environment's; it is left as it is.
    Raises ModelNotFound, GatedModel, HubUnreachable, FactError.
    """
    cache, own = cache or hub_cache(), own_cache()
    with suppress(OSError):
        own.mkdir(parents=True, exist_ok=True)
    if not os.access(own, os.W_OK):
        raise HubUnreachable(
            f"`{model}`: cannot write to the cache folder `{own}`",
            hint="set SPECSERVE_CACHE_DIR to another folder",
        )
    commit = _ask_about("read", model, revision, need_config=need_config, cache=str(cache))
    facts = recall(model, revision=commit, cache=cache)
    if facts is None:
        raise HubUnreachable(f"`{model}`: the Hub sent an invalid answer", hint="check HF_ENDPOINT")
    return replace(facts, origin="hub", revision=revision)


def current_commit(model: str, *, revision: str | None = None) -> str:
    """The commit that a branch has now. Raises ModelNotFound, GatedModel, HubUnreachable."""
    return revision if revision and COMMIT.fullmatch(revision) else _ask_about("commit", model, revision)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as the Hub lists it."""

    model: str
    license: str | None
    date: str | None
    """Of its last change: year, month, day."""


def derived_drafts(target: str) -> list[ListedModel]:
    """The models that name the target as their base and are tagged as drafts. Raises HubUnreachable, GatedModel."""
    answer = _answer("derived", target, None)
    return [ListedModel(**each) for each in answer["models"]]


def _ask_about(work: str, model: str, revision: str | None, **request: Any) -> str:
    """The commit that the child's answer is about. Raises FactError with the model in front."""
    return str(_answer(work, model, revision, **request)["commit"])


def _answer(work: str, model: str, revision: str | None, **request: Any) -> dict[str, Any]:
    """The child's answer. Raises FactError with the model in front."""
    limit_s = _ANSWERS * timeout_s()
    request |= {"work": work, "model": model, "revision": revision}
    request |= {"largest_bytes": MAX_SMALL_BYTES, "memory_bytes": _MEMORY_BYTES}
    # Xet is for weights, and reserves more memory than there may be
    env = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
    answer = _ask(request, patience_s=limit_s, env=env)
    if "message" not in answer and answer:
        return answer
    at = f" at `{revision}`" if revision else ""
    text = str(answer.get("message") or f"the Hub is too slow: not everything was read in {limit_s:.0f} s")
    raise _error(answer, message=text if f"`{model}" in text else f"`{model}`{at}: {text}")


def _error(answer: Mapping[str, Any], *, message: str) -> FactError:
    kinds = {kind.cause: kind for kind in (FactError, GatedModel, ModelNotFound)}
    kind = kinds.get(str(answer.get("cause")), HubUnreachable)
    hint = "check the network and HF_ENDPOINT, or use `--offline`" if kind is HubUnreachable else None
    return kind(message, hint=answer.get("hint") or hint)


def _ask(
    request: Mapping[str, Any],
    *,
    patience_s: float,
    env: Mapping[str, str],
    written: Callable[[], int] = lambda: 0,
) -> dict[str, Any]:
    """The child's answer; empty if `written` did not change for that long.

    The child is killed when its time is over, and when this process is interrupted.
    """
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "specserve.models.hubchild"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if env else None,
        env={**os.environ, **env},
        start_new_session=True,
    ) as child:
        assert child.stdin and child.stdout
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            if not _ends(child, written, patience_s=patience_s):
                return {}
            said = child.stdout.read()
            answer: dict[str, Any] = json.loads(said or '{"message": "the process that asks the Hub died"}')
            return answer
        except (OSError, ValueError) as error:
            return {"message": str(error)}
        finally:
            child.kill()


def _ends(child: subprocess.Popen[bytes], written: Callable[[], int], *, patience_s: float) -> bool:
    """Whether the child ends by itself."""
    state, moved = written(), time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(1.0, patience_s / 4))
            return True
        now = written()
        if now != state:
            state, moved = now, time.monotonic()
        elif time.monotonic() - moved > patience_s:
            return False


MARGIN_BYTES = 64 << 20
"""Stays free on the disk, for logs and the like."""
_NOT_READ = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data",
    "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp", "*.mp3", "*.mp4", "*.wav", "*.flac", "*.parquet", "*.arrow",
    "*.ipynb", "*.zip", "*.tar*",
)  # fmt: skip
"""vLLM reads every other file, and of these the weight files.

Source: vllm/transformers_utils/repo_utils.py, `_WEIGHT_FILE_PATTERNS`, 0.32.
"""
_MAX_TREE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """The files of one model that vLLM reads, and those of them that the cache does not have."""

    model: str
    commit: str
    revision: str | None
    folder: Path
    """The snapshot in the cache."""
    files: dict[str, ModelFile]
    missing: tuple[str, ...]

    @property
    def missing_bytes(self) -> int:
        """The bytes to download; files of unknown size count nothing."""
        return sum(self.files[name].size_bytes or 0 for name in self.missing)

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes or 0 for file in self.files.values())


def plan_download(facts: ModelFacts, *, cache: Path) -> ModelDownload:
    """What is to be fetched of a model that was read on the Hub."""
    assert facts.commit is not None
    folder = repository_folder(facts.model, cache=cache) / "snapshots" / facts.commit
    files = {name: file for name, file in facts.files.items() if _is_read(name) or name in facts.weight_files}
    missing = tuple(name for name, file in files.items() if not is_there(folder / name, file))
    return ModelDownload(facts.model, facts.commit, facts.revision, folder, files, missing)


def _is_read(name: str) -> bool:
    return not any(fnmatchcase(name, pattern) for pattern in _NOT_READ)


def refuse_full_disk(downloads: Iterable[ModelDownload], *, cache: Path) -> None:
    """Raises FactError if the disk of the cache cannot take these downloads."""
    needed = sum(download.missing_bytes for download in downloads)
    place = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    if needed and needed + MARGIN_BYTES > free:
        raise FactError(
            (
                f"{needed / 1e9:.1f} GB must be downloaded, but the disk of `{cache}` has only "
                f"{free / 1e9:.1f} GB free"
            ),
            hint="set HF_HUB_CACHE to another folder, or use `hf cache` to see what can be deleted",
        )


def fetch_files(download: ModelDownload, *, cache: Path, stall_s: float) -> None:
    """Downloads what is missing, with the Hub library's progress on a terminal.

    `stall_s`: gives up when no byte is written for so long.
    Raises HubUnreachable, GatedModel, ModelNotFound, and FactError for a file of another size than the Hub said.
    """
    if download.missing:
        _fetch(download, cache=cache, stall_s=stall_s)
        wrong = [
            name for name in download.missing if not is_there(download.folder / name, download.files[name])
        ]
        if wrong:
            raise FactError(
                f"`{wrong[0]}` of `{download.model}` does not have the size that the Hub reported",
                hint="remove it from the Hub cache and pull again",
            )
    _note_revision(download, cache=cache)
    if missing_of_listing(download.folder):
        # With its listing the library refuses a snapshot that was fetched in part, and vLLM loads a draft by it:
        # huggingface_hub 2.4, _snapshot_download.py, `_raise_if_incomplete_snapshot`.
        _listing_file(download.folder).unlink(missing_ok=True)


def _fetch(download: ModelDownload, *, cache: Path, stall_s: float) -> None:
    sizes = [download.files[name].size_bytes for name in download.missing]
    request = {
        "work": "fetch",
        "model": download.model,
        "revision": download.commit,
        "cache": str(cache),
        "names": download.missing,
        "memory_bytes": None,
        "largest_bytes": None if None in sizes else max(MAX_SMALL_BYTES, *map(int, filter(None, sizes))),
    }
    blobs = repository_folder(download.model, cache=cache) / "blobs"
    answer = _ask(
        request,
        patience_s=stall_s,
        env={} if sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        written=lambda: _bytes_in(blobs),
    )
    if "commit" not in answer:
        words = answer.get("message", f"no data arrived for {stall_s:.0f} s")
        again = {"hint": "run it again: it continues where it stopped"}
        is_final = answer.get("cause") in ("gated", "not_found")
        raise _error(
            answer if is_final else again, message=f"the download of `{download.model}` failed: {words}"
        )


def _bytes_in(folder: Path) -> int:
    """How much lies in a folder; an unfinished file counts too."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                total += 1 + entry.stat().st_size
    return total


def _note_revision(download: ModelDownload, *, cache: Path) -> None:
    """Lets an offline start find the commit by its branch, as the Hub library does; a ref that is there stays."""
    ref = repository_folder(download.model, cache=cache) / "refs" / (download.revision or DEFAULT_REVISION)
    if not COMMIT.fullmatch(ref.name) and not ref.exists():
        with suppress(OSError):
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(download.commit, encoding="ascii")


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
