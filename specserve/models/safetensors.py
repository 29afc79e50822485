"""The tensors that the header of a safetensors file names, without the weights behind it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.models.facts import BITS, Tensor
from specserve.models.files import LFS_POINTER, json_problem, open_regular, reason

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
    sha256: str | None = None
    """Of the header's bytes, without its length in front."""


def read_header(path: Path) -> Header:
    """The header of a local file. Raises FactError if it cannot be read or is not as it must be."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = _header_length(stream.read(64), name=path.name, size_bytes=size)
            stream.seek(LENGTH_BYTES)
            data = stream.read(length)
    except OSError as error:
        raise FactError(f"cannot read `{path.name}`: {reason(error)}") from error
    return parse_header(data, name=path.name, size_bytes=size)


def _header_length(start: bytes, *, name: str, size_bytes: int) -> int:
    """How long the header is, by the first bytes of a file of this size."""
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


def parse_header(data: bytes, *, name: str, size_bytes: int) -> Header:
    """The tensors of a header whose file has this size. Raises FactError, UnknownType for a new type."""
    try:
        content = json.loads(data, object_pairs_hook=_unique)
    except _Duplicate as error:
        raise FactError(f"the header of `{name}` has {error} twice") from error
    except (ValueError, RecursionError) as error:
        raise FactError(f"the header of `{name}` is not valid JSON: {json_problem(error, data)}") from error
    if not isinstance(content, dict):
        raise FactError(f"the header of `{name}` holds no JSON object")
    content.pop("__metadata__", None)
    room = size_bytes - LENGTH_BYTES - len(data)
    tensors, end = tensors_of(content, name=name, room_bytes=room)
    if end < room:
        raise FactError(f"`{name}` has {room - end} bytes that belong to no tensor")
    return Header(tensors, hashlib.sha256(data).hexdigest())


def tensors_of(
    entries: Mapping[str, Any], *, name: str, room_bytes: int | None
) -> tuple[dict[str, Tensor], int]:
    """The tensors of a header's entries, and the bytes that they fill from the first on.

    `room_bytes`: the most that they may fill. Tensors fill the file without holes, as the library demands.
    Raises FactError, UnknownType for a new type.
    """
    tensors, places = {}, []
    for key, value in entries.items():
        tensor, begin, end = _tensor(value, key=key, name=name)
        tensors[key] = tensor
        places.append((begin, end))
    filled = 0
    for begin, end in sorted(places):
        if begin != filled:
            raise FactError(f"the tensors of `{name}` leave holes, or overlap")
        filled = end
    if room_bytes is not None and filled > room_bytes:
        missing = filled - room_bytes
        raise FactError(f"`{name}` is cut short: {missing} of {filled} bytes of its tensors are missing")
    return tensors, filled


def _tensor(value: Any, *, key: str, name: str) -> tuple[Tensor, int, int]:
    """One entry of a header, and where its bytes begin and end."""
    entry: dict[str, Any] = value if isinstance(value, dict) else {}
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not (isinstance(dtype, str) and _numbers(shape) and _numbers(offsets) and len(offsets) == 2):
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


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_DIMENSION for item in value)


class _Duplicate(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise _Duplicate(_quoted(counts.most_common(1)[0][0]))
    return found


def _quoted(key: str) -> str:
    return f"`{key[:120].encode('utf-8', 'backslashreplace').decode()}`"
