"""A model of the Hub to facts: small files whole, weight files by their headers. Downloads no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specserve.errors import FactError, HubUnreachable
from specserve.facts.assemble import Source, assemble
from specserve.facts.bounded import parse_object, read_regular
from specserve.facts.hubcache import COMMIT, DEFAULT_REVISION, find_snapshot, hub_cache
from specserve.facts.hubclient import api_url, deadline, each, fetch, file_url
from specserve.facts.hublisting import Listing, parse_listing
from specserve.facts.model import ModelFacts, ModelFile
from specserve.facts.safetensors import LENGTH_BYTES, Header, header_length, parse_header
from specserve.facts.store import keep, recall
from specserve.facts.weightfiles import MAX_INDEX_BYTES, MAX_OBJECT_BYTES, is_index, is_small, weight_files

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
