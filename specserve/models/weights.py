"""Weight files: which of them vLLM loads, and the tensors that their headers name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.models.bounded import LFS_POINTER, json_problem, open_regular, reason
from specserve.models.facts import BITS, Tensor

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32 << 20
"""The library's own limit is 100 MB; 32 MiB describe 250,000 tensors, more than any public checkpoint has."""
_MAX_DIMENSION = 1 << 62
_TYPE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,15}")


class UnknownType(FactError):
    """A tensor has a type that this specserve does not know: no defect of the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says of itself."""

    tensors: Mapping[str, Tensor]
    sha256: str
    """Of the header's bytes, its length in front of it left out."""
    size_bytes: int | None
    """Of the whole file."""


def read_header(path: Path) -> Header:
    """The header of a local file. Raises FactError where it cannot be read or is not as it must be."""
    try:
        handle = open_regular(path)
    except OSError as error:
        raise FactError(f"cannot read `{path.name}`: {reason(error)}") from error
    with os.fdopen(handle, "rb") as stream:
        try:
            size = os.fstat(handle).st_size
            length = header_length(stream.read(64), name=path.name, size_bytes=size)
            stream.seek(LENGTH_BYTES)
            data = stream.read(length)
        except OSError as error:
            raise FactError(f"cannot read `{path.name}`: {reason(error)}") from error
    return parse_header(data, name=path.name, size_bytes=size)


def header_length(start: bytes, *, name: str, size_bytes: int) -> int:
    """How long the header is, by the first bytes of a file of this size. Raises FactError."""
    if start.startswith(LFS_POINTER[:LENGTH_BYTES]):
        raise FactError(f"`{name}` is a pointer of Git LFS: the file itself was not downloaded")
    if len(start) < LENGTH_BYTES:
        raise FactError(f"`{name}` is cut short: it has {len(start)} bytes")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > size_bytes - LENGTH_BYTES:
        raise FactError(
            f"`{name}` is cut short, or no safetensors file: its header would be {length} bytes long"
        )
    if length > MAX_HEADER_BYTES:
        raise FactError(f"the header of `{name}` is larger than {MAX_HEADER_BYTES >> 20} MiB")
    return length


def parse_header(data: bytes, *, name: str, size_bytes: int | None) -> Header:
    """The tensors of a header whose file has this size. Raises FactError, UnknownType where a type is new.

    Where the size is not known, whether the file is complete is not known either.
    """
    try:
        content = json.loads(data, object_pairs_hook=_unique)
    except _Duplicate as error:
        raise FactError(f"the header of `{name}` has {error} twice") from error
    except (ValueError, RecursionError) as error:
        raise FactError(f"the header of `{name}` is not valid JSON: {json_problem(error, data)}") from error
    if not isinstance(content, dict):
        raise FactError(f"the header of `{name}` holds no JSON object")
    content.pop("__metadata__", None)
    room = None if size_bytes is None else size_bytes - LENGTH_BYTES - len(data)
    tensors, places = {}, []
    for key, value in content.items():
        tensor, begin, end = _tensor(value, key=key, name=name)
        tensors[key] = tensor
        places.append((begin, end))
    _no_gaps(places, room=room, name=name)
    return Header(tensors, hashlib.sha256(data).hexdigest(), size_bytes)


def _tensor(value: Any, *, key: str, name: str) -> tuple[Tensor, int, int]:
    """One entry of a header, and where its bytes begin and end."""
    entry: dict[str, Any] = value if isinstance(value, dict) else {}
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    sound = isinstance(dtype, str) and _numbers(shape) and _numbers(offsets) and len(offsets) == 2
    if not sound:
        raise FactError(f"`{name}` does not say type, shape and place of {_quoted(key)} as it must")
    if dtype not in BITS:
        shown = dtype if _TYPE_NAME.fullmatch(dtype) else "with a strange name"
        raise UnknownType(f"`{name}` has a tensor of type {shown}, which is not known here")
    begin, end = offsets
    bits = BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _MAX_DIMENSION:
            break  # too large in any case: do not multiply on
    if bits != 8 * (end - begin):
        raise FactError(
            f"`{name}` gives {_quoted(key)} {end - begin} bytes, and its shape needs another number"
        )
    return Tensor(dtype, tuple(shape)), begin, end


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_DIMENSION for item in value)


def _no_gaps(places: list[tuple[int, int]], *, room: int | None, name: str) -> None:
    """Tensors fill the file without holes, as the library demands; what is missing was not downloaded."""
    end = 0
    for begin, following in sorted(places):
        if begin != end:
            raise FactError(f"the tensors of `{name}` leave holes, or overlap")
        end = following
    if room is None:
        return
    if end > room:
        raise FactError(f"`{name}` is cut short: {end - room} of {end} bytes of its tensors are missing")
    if end < room:
        raise FactError(f"`{name}` has {room - end} bytes that belong to no tensor")


class _Duplicate(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(_quoted(key))
            seen.add(key)
    return found


def _quoted(key: str) -> str:
    return f"`{key[:120].encode('utf-8', 'backslashreplace').decode()}`"


CONFIG, PARAMS, GENERATION = "config.json", "params.json", "generation_config.json"
MAX_OBJECT_BYTES = 16 << 20
"""Of a configuration."""
MAX_INDEX_BYTES = 64 << 20
_INDEX = {
    "*.safetensors": "model.safetensors.index.json",
    "consolidated*.safetensors": "consolidated.safetensors.index.json",
}
_NOT_FOR_INFERENCE = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SMALL = (
    "*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja",
)  # fmt: skip
_NOT_SMALL = (
    "trainer_state.json",
    "training_args*",
    "all_results.json",
    "train_results.json",
    "eval_results.json",
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")

ReadIndex = Callable[[str], Mapping[str, Any]]


def weight_files(names: Iterable[str], *, read_index: ReadIndex) -> tuple[str, ...]:
    """The safetensors files, else the .bin or .pt files, that vLLM loads; those of an index even if they are absent.

    `read_index` gives the JSON object of an index file. Raises FactError for an index that is none.
    """
    top = sorted(name for name in names if "/" not in name)
    for pattern in ("consolidated*.safetensors", "*.safetensors"):
        index = _INDEX[pattern]
        found = [name for name in top if fnmatchcase(name, pattern)]
        if index in top and (found or pattern == "*.safetensors"):
            return _of_index(read_index(index), index=index)
        if found:
            return tuple(_with_missing_shards(found))
    for suffix in (".bin", ".pt"):
        found = [name for name in top if name.endswith(suffix) and not name.endswith(_NOT_FOR_INFERENCE)]
        if found:
            return tuple(found)
    return ()


def _of_index(content: Mapping[str, Any], *, index: str) -> tuple[str, ...]:
    mapping = content.get("weight_map")
    files = set(mapping.values()) if isinstance(mapping, dict) and _texts(mapping) else None
    if not files or any("/" in file or file in ("", ".", "..") for file in files):
        raise FactError(f"`{index}` has no `weight_map` of tensors to files beside it")
    return tuple(sorted(files))


def _texts(mapping: Mapping[str, Any]) -> bool:
    return all(isinstance(value, str) for value in mapping.values())


def _with_missing_shards(found: list[str]) -> list[str]:
    """`model-00001-of-00003.safetensors` alone promises two more."""
    complete = set(found)
    for name in found:
        match = _SHARD.search(name)
        count = int(match[2]) if match else 0
        if match and count <= 10_000:
            complete |= {
                f"{name[: match.start()]}-{n:05d}-of-{match[2]}.safetensors" for n in range(1, count + 1)
            }
    return sorted(complete)


def is_small(name: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer, which is read whole."""
    if any(fnmatchcase(name, pattern) for pattern in _NOT_SMALL):
        return False
    return any(fnmatchcase(name, pattern) and ("/" in pattern or "/" not in name) for pattern in _SMALL)


def is_index(name: str) -> bool:
    """Whether it is a map from tensors to the files that hold them."""
    return name in _INDEX.values()
