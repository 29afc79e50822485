"""The child that asks the Hub, by the Hub library, within bounds on memory and on the size of a file.

    python -P -m specserve.models.hubchild

One JSON line in; the last one out: the commit that it is about, or models, or what went wrong. It ends with its parent.
"""

from __future__ import annotations

import glob
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from specserve import __version__
from specserve.errors import FactError, GatedModel, HubUnreachable, ModelNotFound
from specserve.models.facts import ModelFile, is_file_name
from specserve.models.files import LENGTH_BYTES, MAX_FILES, MAX_SMALL_BYTES, Header, is_small, tensors_of
from specserve.models.hub import COMMIT, DEFAULT_REVISION, keep, own_cache, recall, timeout_s, with_paths
from specserve.models.read import assemble

_RETRY_PAUSE_S = 0.3
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that a second request may not meet."""
_WORKERS = 8
_DRAFT_TAGS = ("speculators", "speculative-decoding", "eagle3", "eagle", "dflash", "dspark")
"""Tags that authors of drafts give their repositories; the first is that of the library."""
_MOST_LISTED = 50
"""Of each tag; the list of all models derived from a popular one has thousands."""
_T = TypeVar("_T")


def main() -> None:
    """Answer one request, and leave without waiting for threads of the library."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _limit(request)
        if request["work"] == "derived":
            answer: dict[str, Any] = {"models": _derived(request["model"])}
        else:
            work = {"commit": _commit, "read": _read, "fetch": _fetch}[request["work"]]
            answer = {"commit": work(request)}
    except Exception as error:
        problem = _problem(error)
        answer = {"cause": problem.cause, "message": problem.message, "hint": problem.hint}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")  # on a line of its own, whatever was printed
    sys.stdout.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """The parent holds the other end of stdin for as long as it lives."""
    sys.stdin.read()
    os._exit(1)


def _limit(request: Mapping[str, Any]) -> None:
    limits = {resource.RLIMIT_FSIZE: request["largest_bytes"], resource.RLIMIT_AS: request["memory_bytes"]}
    for kind, most in limits.items():
        if most is not None:
            with suppress(ValueError, OSError):  # a tighter limit is in force, or the system knows none
                resource.setrlimit(kind, (most, most))


def _endpoint() -> str | None:
    """HF_ENDPOINT of the environment and of nothing else: the token is sent there."""
    return os.environ.get("HF_ENDPOINT") or None


def _hub() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=_endpoint(), library_name="specserve", library_version=__version__)


def _retried(ask: Callable[[], _T]) -> _T:
    """The library asks once for a listing or a header."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return ask()
    except HfHubHTTPError as error:
        if error.response.status_code not in _PASSING:
            raise
    time.sleep(_RETRY_PAUSE_S)
    return ask()


def _commit(request: Mapping[str, Any]) -> str:
    return _listing(request["model"], request["revision"])[0]


def _listing(model: str, revision: str | None) -> tuple[str, dict[str, ModelFile]]:
    """The commit of a revision, and its files with the sizes that the Hub says."""
    info = _retried(
        lambda: _hub().model_info(
            model, revision=revision or DEFAULT_REVISION, files_metadata=True, timeout=timeout_s()
        )
    )
    if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
        raise HubUnreachable("the answer of the Hub is invalid: it has no commit")
    if info.siblings is None or len(info.siblings) > MAX_FILES:
        raise HubUnreachable("the answer of the Hub is invalid: it lists no files, or too many")
    files = {
        entry.rfilename: ModelFile(entry.size, entry.lfs.sha256 if entry.lfs else None)
        for entry in info.siblings
        if is_file_name(entry.rfilename)
    }
    return info.sha, dict(sorted(files.items()))


def _read(request: Mapping[str, Any]) -> str:
    """Keeps the facts of a revision: small files as a whole, weight files by their headers."""
    model, cache, need_config = request["model"], Path(request["cache"]), request["need_config"]
    commit, listed = _listing(model, request["revision"])
    small = [
        name for name, file in listed.items() if is_small(name) and (file.size_bytes or 0) <= MAX_SMALL_BYTES
    ]
    facts = recall(model, revision=commit, cache=cache)
    is_enough = facts is not None and (facts.config or not need_config)
    if facts is None or not is_enough or any(facts.files[name].path is None for name in small):
        files = _with_small_files(model, commit, listed, small, cache=cache)
        with ThreadPoolExecutor(_WORKERS) as pool:
            facts = assemble(
                model,
                files,
                origin="hub",
                place=model,
                commit=commit,
                need_config=need_config,
                header_of=lambda name: _header(model, commit, name, size_bytes=files[name].size_bytes),
                spread=pool.map,
            )
    keep(replace(facts, revision=request["revision"]))
    return commit


def _with_small_files(
    model: str, commit: str, listed: Mapping[str, ModelFile], names: list[str], *, cache: Path
) -> dict[str, ModelFile]:
    """The files with their places; those of these names that neither cache has are fetched."""
    files = with_paths(listed, model=model, commit=commit, cache=cache)
    missing = [name for name in names if files[name].path is None]
    if missing:
        _snapshot(model, commit, missing, cache=own_cache())
        files = with_paths(listed, model=model, commit=commit, cache=cache)
    for name in missing:
        if files[name].path is None:
            raise HubUnreachable(f"the size of `{name}` does not match the size that the Hub reported")
    return files


def _snapshot(model: str, commit: str, names: Iterable[str], *, cache: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        model,
        revision=commit,
        cache_dir=cache,
        allow_patterns=[glob.escape(name) for name in names],
        endpoint=_endpoint(),
        etag_timeout=timeout_s(),
        library_name="specserve",
        library_version=__version__,
    )


def _header(model: str, commit: str, name: str, *, size_bytes: int | None) -> Header:
    """The header of a weight file. Raises FactError for a broken one.

    The library does not say how long the header is: a file that lacks less than that passes for complete.
    """
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = _retried(lambda: _hub().parse_safetensors_file_metadata(model, name, revision=commit))
    except SafetensorsParsingError as error:
        words = str(error).rpartition("): ")[2]
        raise FactError(f"the header of `{name}` cannot be read: {words}") from error
    entries = {
        key: {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": list(entry.data_offsets)}
        for key, entry in found.tensors.items()
    }
    room = None if size_bytes is None else size_bytes - LENGTH_BYTES
    return Header(tensors_of(entries, name=name, room_bytes=room)[0])


def _fetch(request: Mapping[str, Any]) -> str:
    commit = str(request["revision"])
    _snapshot(request["model"], commit, request["names"], cache=Path(request["cache"]))
    return commit


def _derived(target: str) -> list[dict[str, str | None]]:
    """The models that name the target as their base and have a tag of drafts, by name."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    with suppress(HfHubHTTPError, HFValidationError):
        # for a list, the library would ask a Hub that cannot be reached for 24 s
        _hub().model_info(target, timeout=timeout_s())
    found: dict[str, dict[str, str | None]] = {}
    for tag in _DRAFT_TAGS:
        listed = _retried(
            lambda tag=tag: list(  # type: ignore[misc]
                _hub().list_models(filter=[f"base_model:{target}", tag], limit=_MOST_LISTED)
            )
        )
        for info in listed:
            words = (each.partition(":") for each in info.tags or ())
            license = next((value for key, _, value in words if key == "license"), None)
            date = info.last_modified.date().isoformat() if info.last_modified else None
            found[info.id] = {"model": info.id, "license": license, "date": date}
    return [found[name] for name in sorted(found)]


def _problem(error: Exception) -> FactError:
    """What a user can do something about: a licence, a name, a token, the network."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, FactError):
        return error
    if isinstance(error, errors.GatedRepoError) or status == 403:
        hint = "accept the licence on its page, then run `hf auth login` or set HF_TOKEN"
        return GatedModel("it is gated, and the Hub gave you no access", hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        hint = "a revision is a branch, a tag or a commit of the repository"
        return ModelNotFound("the Hub has no such revision", hint=hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "check the name; a private repository needs HF_TOKEN, or `hf auth login`"
        return ModelNotFound("the Hub has no such repository, or does not show it to you", hint=hint)
    if status == 401:
        hint = "run `hf auth login` for a new token, or correct HF_TOKEN"
        return GatedModel("the Hub does not accept the token", hint=hint)
    if isinstance(error, MemoryError):
        return HubUnreachable("the answer of the Hub is too large")
    kind = type(error).__name__
    words = next(iter(str(error).strip().splitlines()), kind)
    if "header value" in words:  # it would show the token
        words = "the token has characters that no HTTP header can hold"
    words = "did not answer in time" if "Timeout" in kind else f"cannot be asked: {words}"
    return HubUnreachable(f"the Hub at {_endpoint() or 'huggingface.co'} {words}")


if __name__ == "__main__":
    main()
