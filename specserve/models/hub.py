"""A model's facts, wherever it lies: a folder, the Hub's cache, the Hub; and downloads.

huggingface_hub asks. The cache is read by its documented layout, because importing the library
takes 0.3 s.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.files import write_whole
from specserve.models.facts import (
    READS,
    ModelFacts,
    ModelFile,
    Tensor,
    at_once,
    is_small,
    local_path,
    read_folder,
    read_regular,
    refuse_no_hub_id,
    tensors_of,
)

COMMIT = re.compile(r"[0-9a-f]{40}")
MARGIN_BYTES = 64 << 20
"""Stays free on the disk, for logs and the like."""
_DRAFT_TAGS = ("speculators", "speculative-decoding", "eagle3", "eagle", "dflash", "dspark")
"""Tags that authors of drafts give their repositories; the first is that of the library."""
NOT_READ = ("original/*", "*.pth", "*.gguf", "*.onnx", "*.msgpack", "*.h5")
"""What no launch reads; of the other weights it reads one kind."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_ALSO_READ = ("mask_embedding.pt", "additional_chat_templates/*.jinja")
"""Beside weights and small files: what a DFlash draft may have
(vllm/model_executor/models/qwen3_dflash.py, `MASK_EMBEDDING_FILENAME`, 0.32), chat templates."""
_REFUSALS = {
    "GatedRepoError": ("gated", "it is gated", "accept the licence on its page, and set HF_TOKEN"),
    "RevisionNotFoundError": ("not_found", "no such revision", "name a branch or a commit"),
    "RepositoryNotFoundError": ("not_found", "no such repository", "a private one needs HF_TOKEN"),
}
"""By the library's error: our cause, what is said, and what can be done."""


def hub_cache(env: Mapping[str, str] = os.environ) -> Path:
    """Where the Hub library keeps its files, by these environment variables.

    Source: huggingface_hub 2.4, constants.py, `HF_HUB_CACHE`.
    """
    cache_home = env.get("XDG_CACHE_HOME") or "~/.cache"
    home = env.get("HF_HOME") or f"{cache_home}/huggingface"
    place = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(place)))  # noqa: PTH111 - Path's raises without a home


def is_offline(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment forbids the Hub: HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE."""
    value = env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def answer_cache() -> Path:
    """Where vLLM's answers are kept: `SPECSERVE_CACHE_DIR`, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get("SPECSERVE_CACHE_DIR")
    return Path(named) if named else user_cache_path("specserve")


def _repository(model: str, cache: Path) -> Path:
    return cache / f"models--{model.replace('/', '--')}"


def find_snapshot(model: str, *, revision: str | None, cache: Path) -> Path | None:
    """The cached snapshot of a Hub id at a commit, or at the commit that a branch had then.

    The folder is called by its commit; some of its files may be absent. Source: huggingface_hub
    2.4, file_download.py, `try_to_load_from_cache`.
    """
    repository, commit = _repository(model, cache), revision or "main"
    if not COMMIT.fullmatch(commit):
        try:
            commit = read_regular(repository / "refs" / commit, limit_bytes=200).decode().strip()
        except (FactError, ValueError):
            return None
    folder = repository / "snapshots" / commit
    return folder if COMMIT.fullmatch(commit) and folder.is_dir() else None


def read_from_hub(
    model: str, *, revision: str | None = None, cache: Path | None = None
) -> ModelFacts:
    """What the Hub says of a revision: small files as a whole, weight files by their headers.

    Small files go into the cache (default: that of this process), where no branch leads to them:
    vLLM would take them for a whole model. Raises FactError.
    """
    from huggingface_hub.errors import SafetensorsParsingError

    with _asking(model, revision):
        info, api, cache = _info(model, revision), _api(), cache or hub_cache()
        folder = _repository(model, cache) / "snapshots" / info.sha
        sizes = {str(entry.rfilename): entry.size for entry in info.siblings}
        _fetch(model, info.sha, filter(is_small, sizes), cache=cache)
        files = {
            name: ModelFile(sizes[name], path=folder / name if is_small(name) else None)
            for name in sorted(sizes)
        }

        def header(name: str) -> Mapping[str, Tensor]:
            try:
                found = api.parse_safetensors_file_metadata(model, name, revision=info.sha)
            except SafetensorsParsingError as error:
                raise FactError(f"the header of `{name}` cannot be read: {error}") from error
            entries = {key: vars(entry) for key, entry in found.tensors.items()}
            return tensors_of(entries, name=name, room_bytes=sizes[name])

        facts = read_folder(folder, model, "hub", files=files, read=header)
        return replace(facts, revision=revision, commit=info.sha)


def derived_drafts(target: str) -> list[tuple[str, str | None]]:
    """The models that name the target as their base and are tagged as drafts, by name.

    Each with the day of its last change. Raises FactError.
    """
    _info(target, None)  # for a list, the library would ask a Hub that is away for 24 s
    found = dict[str, str | None]()
    with _asking(target):
        for tag in _DRAFT_TAGS:
            for info in _api().list_models(filter=[f"base_model:{target}", tag], limit=50):
                date = info.last_modified.date().isoformat() if info.last_modified else None
                found[info.id] = date
    return sorted(found.items())


@dataclass(frozen=True, slots=True)
class ModelDownload:
    """The files of one model that vLLM reads, and those of them that the cache does not have."""

    model: str
    commit: str
    revision: str | None
    folder: Path
    """The snapshot in the cache."""
    files: Mapping[str, ModelFile]
    missing: tuple[str, ...]

    @property
    def missing_bytes(self) -> int:
        """The bytes to download; files of unknown size count nothing."""
        return sum(self.files[name].size_bytes or 0 for name in self.missing)


def is_read(name: str) -> bool:
    """Whether a launch reads this file of a repository, if it has one, beside the weights."""
    return is_small(name) or any(fnmatchcase(name, each) for each in _ALSO_READ)


def plan_download(facts: ModelFacts, *, cache: Path, weights: bool = True) -> ModelDownload:
    """What is to be fetched of a model that was read on the Hub, with or without its weights.

    A repository with Python files is fetched whole: its code may open any file of it.
    """
    commit, has_code = str(facts.commit), any(name.endswith(".py") for name in facts.files)
    folder = _repository(facts.model, cache) / "snapshots" / commit
    files, missing = dict[str, ModelFile](), list[str]()
    for name, file in facts.files.items():
        others = not any(fnmatchcase(name, each) for each in (*NOT_READ, *_WEIGHTS))
        is_weight = weights and name in facts.weight_files
        if is_weight or is_read(name) or (has_code and others):
            files[name], path = file, folder / name
            size = os.path.getsize(path) if os.path.exists(path) else None  # noqa: PTH110, PTH202 - any name
            missing += [name] if size is None or size != (file.size_bytes or size) else []
    return ModelDownload(facts.model, commit, facts.revision, folder, files, tuple(missing))


def refuse_full_disk(downloads: Iterable[ModelDownload], *, cache: Path) -> None:
    """Raises FactError if the disk of the cache cannot take these downloads."""
    needed = sum(download.missing_bytes for download in downloads)
    place = next(folder for folder in (cache, *cache.parents, Path("/")) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed and needed + MARGIN_BYTES > free:
        room = f"the disk of `{cache}` has only {free / 1e9:.1f} GB free"
        hint = "set HF_HUB_CACHE to another folder, or remove models: `hf cache`"
        raise FactError(f"{needed / 1e9:.1f} GB must be downloaded, but {room}", hint=hint)


def fetch_files(download: ModelDownload, *, cache: Path) -> None:
    """Downloads what is missing, with progress on a terminal. Raises FactError."""
    from huggingface_hub.utils.tqdm import enable_progress_bars

    model, commit = download.model, download.commit
    with _asking(model):
        if sys.stderr.isatty():
            enable_progress_bars()
        _fetch(model, commit, download.missing, cache=cache)
    if find_snapshot(model, revision=download.revision, cache=cache) is None:
        ref = _repository(model, cache) / "refs" / (download.revision or "main")
        with suppress(OSError):  # a branch `a` and a branch `a/b` cannot both be files
            ref.parent.mkdir(parents=True, exist_ok=True)  # an offline start goes by the branch
            write_whole(ref, commit, mode=0o644)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(os.environ.get("HF_ENDPOINT"))


def _info(model: str, revision: str | None) -> Any:
    from huggingface_hub import constants

    with _asking(model, revision):
        at, timeout = revision or "main", constants.HF_HUB_DOWNLOAD_TIMEOUT
        info = _api().model_info(model, revision=at, files_metadata=True, timeout=timeout)
        if not COMMIT.fullmatch(str(info.sha)) or info.siblings is None:
            raise ValueError("it answers without a commit, or without files")
        return info


def _fetch(model: str, commit: str, names: Iterable[str], *, cache: Path) -> None:
    """Downloads these files. `snapshot_download` would note all others as missing offline."""
    get = _api().hf_hub_download
    at_once(lambda name: get(model, name, revision=commit, cache_dir=cache), names)


@contextmanager
def _asking(model: str, revision: str | None = None) -> Iterator[None]:
    """Makes the library's errors ours, with the model in front."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    except FactError:
        raise
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        if "header value" in said:  # it would show the token
            said = "the token has characters that no HTTP header can hold"
        away = f"the Hub at {os.environ.get('HF_ENDPOINT') or 'huggingface.co'} cannot be asked"
        name = "GatedRepoError" if status == 403 else type(error).__name__
        unreachable = "unreachable", f"{away}: {said}", "check the network, or use `--offline`"
        cause, text, hint = _REFUSALS.get(name, unreachable)
        at = f" at `{revision}`" if revision and not COMMIT.fullmatch(revision) else ""
        raise FactError(f"`{model}`{at}: {text}", hint=hint, cause=cause) from None


def read_model(
    model: str,
    *,
    revision: str | None = None,
    folder: Path | None = None,
    offline: bool = False,
    cache: Path | None = None,
) -> ModelFacts:
    """What is known of a model: its configuration, its files, its tensors.

    A model that lies in the Hub cache with its weights is read from there, without asking the Hub.
    `cache`: instead of that of this process. `folder`: where a relative path starts, by default the
    current directory. Raises FactError for a model that cannot be had, and for broken files.
    """
    place = local_path(model, folder=folder)
    if place is not None:
        if place.is_file():
            raise FactError(f"`{model}` is a file: {READS}", cause="unsupported")
        return replace(read_folder(place, model, "directory"), revision=revision)
    refuse_no_hub_id(model, revision=revision)
    known = None
    if snapshot := find_snapshot(model, revision=revision, cache=cache or hub_cache()):
        with suppress(FactError):  # no more than the rest of a download
            known = read_folder(snapshot, model, "cache")
            known = replace(known, revision=revision, commit=snapshot.name)
    is_alone = offline or is_offline()
    is_complete = known and known.weight_files and {*known.weight_files} <= known.files.keys()
    if known and (is_complete or (is_alone and known.config)):
        return known
    if not is_alone:
        return read_from_hub(model, revision=revision, cache=cache)
    at = f" at `{revision}`" if revision else ""
    why = "the Hub is not asked" if offline else "HF_HUB_OFFLINE is set"
    text = f"`{model}`{at} is not in the Hub cache, and {why}"
    raise FactError(text, hint="`specserve pull PROFILE` fetches it", cause="offline")
