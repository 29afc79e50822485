"""A model of the Hub to facts: small files whole, weight files by their headers, kept by commit in the user's cache."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from specserve import __version__
from specserve.errors import FactError, HubUnreachable
from specserve.models.assemble import MAX_FILES, Source, assemble
from specserve.models.bounded import parse_object, read_regular, reason
from specserve.models.facts import ModelFacts, ModelFile, from_record, to_record, with_paths
from specserve.models.hubcache import COMMIT, DEFAULT_REVISION, find_snapshot, hub_cache
from specserve.models.hubclient import api_url, deadline, each, fetch, file_url
from specserve.models.weights import (
    LENGTH_BYTES,
    MAX_INDEX_BYTES,
    MAX_OBJECT_BYTES,
    Header,
    header_length,
    is_index,
    is_small,
    parse_header,
    weight_files,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """One commit of a repository."""

    commit: str
    files: Mapping[str, ModelFile]


def parse_listing(answer: Mapping[str, Any], *, model: str) -> Listing:
    """The commit and files in an answer of /api/models/ID/revision/REV. Raises FactError where it is none."""
    commit, siblings = answer.get("sha"), answer.get("siblings")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise FactError(f"it names no commit of `{model}`")
    if not isinstance(siblings, list) or len(siblings) > MAX_FILES:
        raise FactError(f"it does not list the files of `{model}`, or too many")
    found = dict(filter(None, map(_file, siblings)))
    return Listing(commit, dict(sorted(found.items())))


def _file(entry: Any) -> tuple[str, ModelFile] | None:
    values = entry if isinstance(entry, dict) else {}
    name, size, lfs = values.get("rfilename"), values.get("size"), values.get("lfs")
    if not isinstance(name, str) or not _is_safe(name):
        return None
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else None
    known = type(size) is int and 0 <= size < 1 << 62
    hashed = isinstance(sha256, str) and _SHA256.fullmatch(sha256)
    return name, ModelFile(size if known else None, sha256 if hashed else None)


def _is_safe(name: str) -> bool:
    """Whether it names a file inside a folder, and nothing else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    parts = name.split("/")
    return len(name) <= _MAX_NAME and "\0" not in name and {"", ".", ".."}.isdisjoint(parts)


FORMAT = f"1 {__version__}"
"""A newer specserve may know what an older one noted as unknown."""
_MAX_RECORD_BYTES = 64 << 20


def fact_cache() -> Path:
    """`SPECSERVE_CACHE_DIR`, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get("SPECSERVE_CACHE_DIR")
    return Path(named) if named else user_cache_path("specserve")


def recall(model: str, *, revision: str | None = None) -> ModelFacts | None:
    """What is known of a Hub id at a commit, or at the commit that a branch had when it was last read."""
    repository = _repository(model)
    wanted = revision or DEFAULT_REVISION
    if not COMMIT.fullmatch(wanted):
        try:
            wanted = read_regular(repository / "refs" / wanted, limit_bytes=100).decode("ascii").strip()
        except (FactError, UnicodeDecodeError, ValueError):
            return None
    record = repository / f"{wanted}.json"
    try:
        content = parse_object(read_regular(record, limit_bytes=_MAX_RECORD_BYTES), where=record.name)
        facts = from_record(content.get("facts"), origin="cache")
    except (FactError, ValueError):
        return None
    if content.get("format") != FORMAT or facts.commit != wanted or facts.model != model:
        return None
    return with_paths(facts, repository / wanted)


def keep(facts: ModelFacts, *, contents: Mapping[str, bytes]) -> ModelFacts:
    """Writes the facts and these small files; the facts with the paths of the files.

    Where the cache cannot be written, a temporary folder takes the files until the program ends. Raises FactError
    where that cannot be either.
    """
    assert facts.commit is not None
    try:
        return _kept(facts, contents, _repository(facts.model))
    except OSError:
        pass
    try:
        return _kept(facts, contents, _for_now() / facts.model.replace("/", "--"))
    except OSError as error:
        raise FactError(
            f"cannot write `{fact_cache()}`: {reason(error)}", hint="SPECSERVE_CACHE_DIR names another folder"
        ) from error


def _kept(facts: ModelFacts, contents: Mapping[str, bytes], repository: Path) -> ModelFacts:
    folder = repository / str(facts.commit)
    for name, data in contents.items():
        _write(folder / name, data)
    record = {"format": FORMAT, "facts": to_record(facts)}
    _write(repository / f"{facts.commit}.json", json.dumps(record, sort_keys=True).encode())
    if facts.revision != facts.commit:
        with suppress(OSError):  # a branch `a` and a branch `a/b` cannot both be files
            _write(repository / "refs" / (facts.revision or DEFAULT_REVISION), str(facts.commit).encode())
    return with_paths(facts, folder)


@cache
def _for_now() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="specserve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _repository(model: str) -> Path:
    return fact_cache() / "models" / model.replace("/", "--")


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all: two checks may run at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


MAX_SMALL_BYTES = 128 << 20
"""A larger tokenizer.json is listed and not fetched."""
_MAX_LISTING_BYTES = 32 << 20
_FIRST_BYTES = 96 << 10
"""Most headers are shorter, and one request does."""


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    header: bool
    size_bytes: int | None


def list_model(model: str, *, revision: str | None = None, until: float | None = None) -> Listing:
    """The commit of a revision and its files. Raises ModelNotFound, GatedModel, HubUnreachable."""
    url = api_url(model, revision=revision or DEFAULT_REVISION)
    try:
        (reply,) = each(
            lambda url: fetch(url, limit_bytes=_MAX_LISTING_BYTES), [url], until=until or deadline()
        ).values()
        if isinstance(reply, FactError):
            raise reply
        return parse_listing(parse_object(reply.body, where="the Hub's answer"), model=model)
    except FactError as error:
        raise _about(error, model, revision) from error


def _about(error: FactError, model: str, revision: str | None) -> FactError:
    """The same error with the model in front; an answer that is none is the Hub's fault."""
    at = f"`{model}`" + (f" at `{revision}`" if revision else "")
    if type(error) is FactError:
        return HubUnreachable(f"{at}: the Hub does not answer as it must: {error.message}", hint=error.hint)
    return type(error)(f"{at}: {error.message}", hint=error.hint)


def read_from_hub(
    model: str, *, revision: str | None = None, need_config: bool = True, cache: Any = None
) -> ModelFacts:
    """What the Hub knows of a revision; files of a commit that were read before are not asked for again.

    Raises ModelNotFound, GatedModel, HubUnreachable, FactError.
    """
    until = deadline()
    listing = list_model(model, revision=revision, until=until)
    known = recall(model, revision=listing.commit)
    if known and all(file.path for name, file in known.files.items() if _wanted(name, file, {})):
        return replace(known, origin="hub", revision=revision)
    contents = _local_copies(model, listing, cache=cache)
    jobs = [
        _Job(name, False, file.size_bytes)
        for name, file in listing.files.items()
        if _wanted(name, file, contents)
    ]
    headers: dict[str, Header | FactError] = {}

    def get(job: _Job) -> bytes | Header:
        url = file_url(model, commit=listing.commit, name=job.name)
        return _header(url, job) if job.header else _whole(url, job)

    try:
        for job, result in each(get, jobs, until=until).items():
            contents[job.name] = _must(result)
        names = weight_files(listing.files, read_index=lambda name: _object(contents, name))
        shards = [
            _Job(name, True, listing.files[name].size_bytes) for name in names if _has_header(name, listing)
        ]
        for job, header in each(get, shards, until=until).items():
            headers[job.name] = _or_lie(header)
    except FactError as error:
        raise _about(error, model, revision) from error
    source = Source(
        model, listing.files, lambda name: _object(contents, name), lambda name: _must(headers[name])
    )
    facts = assemble(
        source, model=model, origin="hub", revision=revision, commit=listing.commit, need_config=need_config
    )
    return keep(facts, contents=contents)


def _wanted(name: str, file: ModelFile, contents: Mapping[str, bytes]) -> bool:
    return is_small(name) and name not in contents and (file.size_bytes or 0) <= MAX_SMALL_BYTES


def _has_header(name: str, listing: Listing) -> bool:
    return name.endswith(".safetensors") and name in listing.files


def _local_copies(model: str, listing: Listing, *, cache: Any) -> dict[str, bytes]:
    """Small files that the Hub cache has of this very commit."""
    snapshot = find_snapshot(model, revision=listing.commit, cache=cache or hub_cache())
    found = {}
    for name, file in listing.files.items() if snapshot else ():
        if snapshot and is_small(name) and file.size_bytes is not None:
            try:
                data = read_regular(snapshot.folder / name, limit_bytes=MAX_SMALL_BYTES)
            except FactError:
                continue
            if len(data) == file.size_bytes:
                found[name] = data
    return found


def _whole(url: str, job: _Job) -> bytes:
    reply = fetch(url, limit_bytes=MAX_SMALL_BYTES)
    if job.size_bytes is not None and len(reply.body) != job.size_bytes:
        raise HubUnreachable(
            f"the Hub sent {len(reply.body)} bytes of `{job.name}` and promised {job.size_bytes}"
        )
    return reply.body


def _header(url: str, job: _Job) -> Header:
    """The header of a weight file by one or two range requests."""
    size = job.size_bytes if job.size_bytes is not None else 1 << 62
    wanted = min(size, _FIRST_BYTES)
    start = fetch(url, limit_bytes=wanted, first=0, last=wanted - 1).body if wanted else b""
    if job.size_bytes is not None and len(start) != wanted:
        raise HubUnreachable(f"the Hub sent {len(start)} of the first {wanted} bytes of `{job.name}`")
    length = header_length(start, name=job.name, size_bytes=size)
    data = start[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(data) < length:
        first = LENGTH_BYTES + len(data)
        data += fetch(url, limit_bytes=length, first=first, last=LENGTH_BYTES + length - 1).body
    if len(data) != length:
        raise HubUnreachable(
            f"the Hub sent {len(data)} bytes of the header of `{job.name}`, which has {length}"
        )
    return parse_header(data, name=job.name, size_bytes=job.size_bytes)


def _must(result: Any) -> Any:
    if isinstance(result, FactError):
        raise result
    return result


def _or_lie(result: Any) -> Any:
    """A broken header is the repository's; everything else is the Hub's, and ends the reading."""
    if isinstance(result, FactError) and result.cause != "broken":
        raise result
    return result


def _object(contents: Mapping[str, bytes], name: str) -> dict[str, Any]:
    data = contents.get(name)
    if data is None:
        raise FactError(f"`{name}` is too large to be read")
    limit = MAX_INDEX_BYTES if is_index(name) else MAX_OBJECT_BYTES
    if len(data) > limit:
        raise FactError(f"`{name}` is larger than {limit >> 20} MiB")
    return parse_object(data, where=name)


def current_commit(model: str, *, revision: str | None = None) -> str:
    """The commit that a branch has now. Raises ModelNotFound, GatedModel, HubUnreachable."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    return list_model(model, revision=revision).commit
