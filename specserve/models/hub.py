"""The Hub: its cache on this machine, what it says of a model, and downloads.

Whatever asks the Hub runs in a child (hubchild.py): the Hub library bounds the silence of a server, but neither the
time nor the bytes of an answer. The cache is read by its documented layout, because importing huggingface_hub takes
0.3 s; specserve's own lies beside it.
"""

from __future__ import annotations

import json
import os
import re
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

from specserve import __version__
from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound
from specserve.files import write_whole
from specserve.models.facts import ModelFacts, ModelFile, from_record, to_record
from specserve.models.files import MAX_SMALL_BYTES, parse_object, read_regular

COMMIT = re.compile(r"[0-9a-f]{40}")
DEFAULT_REVISION = "main"
_TRUE = {"1", "ON", "YES", "TRUE"}
_FORMAT = f"2 {__version__}"
"""A newer specserve may know what an older one noted as unknown."""
_MAX_RECORD_BYTES = 64 << 20
_DEFAULT_TIMEOUT_S = 10
_MEMORY_BYTES = 2 << 30
"""For reading facts: the library takes an answer of any length into memory."""
_ANSWERS = 12
"""Reading one model may take as long as so many answers that come at the last moment."""


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


def _repository(model: str, *, cache: Path) -> Path:
    return cache / ("models--" + model.replace("/", "--"))


def find_snapshot(model: str, *, revision: str | None, cache: Path) -> Path | None:
    """The cached snapshot of a Hub id at a commit, or at the commit that a branch had when it was fetched.

    The folder is called by its commit; some of its files may be absent. Source: huggingface_hub 2.4,
    file_download.py, `try_to_load_from_cache`.
    """
    repository = _repository(model, cache=cache)
    commit = _commit_of(repository, revision)
    folder = repository / "snapshots" / str(commit)
    return folder if commit and folder.is_dir() else None


def _commit_of(repository: Path, revision: str | None) -> str | None:
    text = revision or DEFAULT_REVISION
    if not COMMIT.fullmatch(text):
        try:
            text = read_regular(repository / "refs" / text, limit_bytes=200).decode("ascii").strip()
        except (FactError, ValueError):
            return None
    return text if COMMIT.fullmatch(text) else None


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
    repository = _repository(model, cache=own_cache())
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


def keep(facts: ModelFacts) -> None:
    """Writes what `recall` finds. Raises OSError."""
    repository = _repository(facts.model, cache=own_cache())
    record = {"format": _FORMAT, "facts": to_record(facts)}
    (repository / "facts").mkdir(parents=True, exist_ok=True)
    write_whole(repository / "facts" / f"{facts.commit}.json", json.dumps(record, sort_keys=True), mode=0o600)
    if facts.revision != facts.commit:
        _write_ref(repository / "refs" / (facts.revision or DEFAULT_REVISION), commit=str(facts.commit))


def _write_ref(ref: Path, *, commit: str) -> None:
    with suppress(OSError):  # a branch `a` and a branch `a/b` cannot both be files
        ref.parent.mkdir(parents=True, exist_ok=True)
        write_whole(ref, commit, mode=0o644)


def with_paths(
    files: Mapping[str, ModelFile], *, model: str, commit: str, cache: Path
) -> dict[str, ModelFile]:
    """The files of a commit, each with its place in the Hub cache or in our own, if it lies there in its full size."""
    folders = [_repository(model, cache=place) / "snapshots" / commit for place in (cache, own_cache())]
    return {
        name: replace(
            file, path=next((folder / name for folder in folders if _is_there(folder / name, file)), None)
        )
        for name, file in files.items()
    }


def _is_there(path: Path, file: ModelFile) -> bool:
    """Whether a file lies there, in the size that the Hub says."""
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return file.size_bytes is None or size == file.size_bytes


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
    answer = _ask("read", model, revision, need_config=need_config, cache=str(cache))
    facts = recall(model, revision=str(answer["commit"]), cache=cache)
    if facts is None:
        raise HubUnreachable(f"`{model}`: the Hub sent an invalid answer", hint="check HF_ENDPOINT")
    return replace(facts, origin="hub", revision=revision)


def current_commit(model: str, *, revision: str | None = None) -> str:
    """The commit that a branch has now. Raises ModelNotFound, GatedModel, HubUnreachable."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    return str(_ask("commit", model, revision)["commit"])


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as the Hub lists it."""

    model: str
    license: str | None
    date: str | None
    """Of its last change: year, month, day."""


def derived_drafts(target: str) -> list[ListedModel]:
    """The models that name the target as their base and are tagged as drafts. Raises HubUnreachable, GatedModel."""
    return [ListedModel(**each) for each in _ask("derived", target, None)["models"]]


def _ask(work: str, model: str, revision: str | None, **request: Any) -> dict[str, Any]:
    """The child's answer to a question. Raises FactError with the model in front."""
    limit_s = _ANSWERS * timeout_s()
    request |= {"work": work, "model": model, "revision": revision}
    request |= {"largest_bytes": MAX_SMALL_BYTES, "memory_bytes": _MEMORY_BYTES}
    # Xet is for weights, and reserves more memory than there may be
    env = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
    answer = _answer_of_child(request, patience_s=limit_s, env=env)
    text = answer.get("message", f"the Hub is too slow: not everything was read in {limit_s:.0f} s")
    if answer and "message" not in answer:
        return answer
    at = f" at `{revision}`" if revision else ""
    raise _error(answer, message=text if f"`{model}" in text else f"`{model}`{at}: {text}")


def _error(answer: Mapping[str, Any], *, message: str) -> FactError:
    kinds = {kind.cause: kind for kind in (FactError, GatedModel, ModelNotFound)}
    kind = kinds.get(str(answer.get("cause")), HubUnreachable)
    hint = "check the network and HF_ENDPOINT, or use `--offline`" if kind is HubUnreachable else None
    return kind(message, hint=answer.get("hint") or hint)


def _answer_of_child(
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
            state, moved = written(), time.monotonic()
            while child.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(min(1.0, patience_s / 4))
                now = written()
                if now != state:
                    state, moved = now, time.monotonic()
                elif child.poll() is None and time.monotonic() - moved > patience_s:
                    return {}
            said = child.stdout.read()
            last = said.rstrip().rpartition(b"\n")[2]  # a library may have printed before it
            answer: dict[str, Any] = json.loads(last or '{"message": "the process that asks the Hub died"}')
            return answer
        except (OSError, ValueError) as error:
            return {"message": str(error)}
        finally:
            child.kill()


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
    folder = _repository(facts.model, cache=cache) / "snapshots" / facts.commit
    files = {name: file for name, file in facts.files.items() if _is_read(name) or name in facts.weight_files}
    missing = tuple(name for name, file in files.items() if not _is_there(folder / name, file))
    return ModelDownload(facts.model, facts.commit, facts.revision, folder, files, missing)


def _is_read(name: str) -> bool:
    return not any(fnmatchcase(name, pattern) for pattern in _NOT_READ)


def refuse_full_disk(downloads: Iterable[ModelDownload], *, cache: Path) -> None:
    """Raises FactError if the disk of the cache cannot take these downloads."""
    needed = sum(download.missing_bytes for download in downloads)
    place = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    if needed and needed + MARGIN_BYTES > free:
        room = f"the disk of `{cache}` has only {free / 1e9:.1f} GB free"
        raise FactError(
            f"{needed / 1e9:.1f} GB must be downloaded, but {room}",
            hint="set HF_HUB_CACHE to another folder, or use `hf cache` to see what can be deleted",
        )


def fetch_files(download: ModelDownload, *, cache: Path, stall_s: float) -> None:
    """Downloads what is missing, with the Hub library's progress on a terminal.

    `stall_s`: gives up when no byte is written for so long.
    Raises HubUnreachable, GatedModel, ModelNotFound, and FactError for a file of another size than the Hub said.
    """
    if download.missing:
        _fetch(download, cache=cache, stall_s=stall_s)
        here, files = download.folder, download.files
        wrong = next((name for name in download.missing if not _is_there(here / name, files[name])), None)
        if wrong:
            raise FactError(
                f"`{wrong}` of `{download.model}` does not have the size that the Hub reported",
                hint="remove it from the Hub cache and pull again",
            )
    ref = _repository(download.model, cache=cache) / "refs" / (download.revision or DEFAULT_REVISION)
    if not COMMIT.fullmatch(ref.name) and not ref.exists():
        _write_ref(ref, commit=download.commit)  # an offline start finds the commit by its branch
    if missing_of_listing(download.folder):
        # With its listing the library refuses a snapshot that was fetched in part, and vLLM loads a draft by it:
        # huggingface_hub 2.4, _snapshot_download.py, `_raise_if_incomplete_snapshot`.
        listing = download.folder.parents[1] / "trees" / f"{download.commit}.json"
        listing.unlink(missing_ok=True)


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
    blobs = _repository(download.model, cache=cache) / "blobs"
    answer = _answer_of_child(
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
    with (
        suppress(OSError),
        os.scandir(folder) as entries,
    ):  # a file that was renamed meanwhile is movement too
        return sum(1 + entry.stat().st_size for entry in entries)
    return 0


def missing_of_listing(folder: Path) -> tuple[str, ...]:
    """The weight files that the Hub library expects in a snapshot and that are not there."""
    files: object = None
    with suppress(FactError):
        listing = folder.parents[1] / "trees" / f"{folder.name}.json"
        data = read_regular(listing, limit_bytes=_MAX_RECORD_BYTES)
        files = parse_object(data, where="the listing").get("files")
    names = files if isinstance(files, dict) else {}
    return tuple(name for name in names if not _is_read(name) and not os.path.lexists(folder / name))
