"""Files of strangers: read up to a limit, never a pipe; safetensors headers; which files of a model are what."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError, ModelNotFound, system_reason
from specserve.files import open_regular
from specserve.models.facts import BITS, ModelFile, Tensor, is_file_name

MAX_DEPTH = 64
"""Of nested JSON."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_TOO_DEEP = "it is nested too deeply"
_TOO_LONG = "it contains a number with too many digits"
_MOST_DIGITS = 100


def read_regular(path: Path, *, limit_bytes: int, where: str | None = None) -> bytes:
    """A regular file's bytes. Raises FactError for anything else, and for one that is larger than the limit.

    `where`: its name in messages, by default its path.
    """
    try:
        with open_regular(path) as stream:
            data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise FactError(f"cannot read `{where or path}`: {system_reason(error)}") from error
    if len(data) > limit_bytes:
        raise FactError(f"`{where or path}` is larger than {limit_bytes >> 20} MiB")
    return data


def whole_number(digits: str) -> int:
    """A number of a file of JSON. Raises ValueError for one that fits into no float, or that Python does not read."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(_TOO_LONG)
    return int(digits)


def parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    """A JSON object. Raises FactError for other JSON, no JSON, nesting without end, and numbers of 100 digits."""
    try:
        value = json.loads(data, parse_int=whole_number)
    except (ValueError, RecursionError) as error:
        raise FactError(f"`{where}` is not valid JSON: {json_problem(error, data)}") from error
    if not isinstance(value, dict):
        names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
        raise FactError(f"`{where}` contains {names.get(type(value), 'null')} instead of a JSON object")
    if _is_deep(value):
        raise FactError(f"`{where}` is not valid JSON: {_TOO_DEEP}")
    return value


def _is_deep(value: object) -> bool:
    """Whether it is nested deeper than anybody means it, and than it could be written again."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def json_problem(error: Exception, data: bytes) -> str:
    """What is wrong with it, in a few words."""
    if data.startswith(LFS_POINTER):
        return "it is a Git LFS pointer, and the file itself was not downloaded"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at line {error.lineno} column {error.colno}"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return _TOO_LONG


CONFIG, PARAMS, GENERATION = "config.json", "params.json", "generation_config.json"
TOKENIZER = "tokenizer.json"
MAX_SMALL_BYTES = 128 << 20
"""A larger tokenizer.json is listed, and not fetched from the Hub."""
_MAX_OBJECT_BYTES = 16 << 20
_MAX_INDEX_BYTES = 64 << 20
_INDEX = {
    "*.safetensors": "model.safetensors.index.json",
    "consolidated*.safetensors": "consolidated.safetensors.index.json",
}
_NOT_FOR_INFERENCE = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SMALL = (
    "*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja",
)  # fmt: skip
_NOT_SMALL = (
    "trainer_state.json", "training_args*", "all_results.json", "train_results.json", "eval_results.json",
)  # fmt: skip
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def read_object(path: Path, *, where: str) -> dict[str, Any]:
    """The JSON object in a file of a model, which is called `where` in messages. Raises FactError."""
    limit = _MAX_INDEX_BYTES if path.name in _INDEX.values() else _MAX_OBJECT_BYTES
    return parse_object(read_regular(path, limit_bytes=limit, where=where), where=where)


def object_problem(path: Path, *, where: str) -> str | None:
    """What is wrong with a large JSON object, by its first and last bytes: empty, a pointer, or cut short."""
    try:
        with open_regular(path) as stream:
            start = stream.read(64)
            stream.seek(max(path.stat().st_size - 64, 0))
            end = stream.read(64)
    except OSError as error:
        return f"cannot read `{where}`: {system_reason(error)}"
    if start.startswith(LFS_POINTER):
        return f"`{where}` is a Git LFS pointer: the file itself was not downloaded"
    if not start.lstrip().startswith(b"{"):
        return f"`{where}` is empty" if not start.strip() else f"`{where}` is not a JSON object"
    return None if end.rstrip().endswith(b"}") else f"`{where}` ends in the middle"


def is_small(name: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer, which is read as a whole."""
    if any(fnmatchcase(name, pattern) for pattern in _NOT_SMALL):
        return False
    return any(fnmatchcase(name, pattern) and ("/" in pattern or "/" not in name) for pattern in _SMALL)


def weight_files(names: Iterable[str], *, read_index: Callable[[str], Mapping[str, Any]]) -> tuple[str, ...]:
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
    files = list(mapping.values()) if isinstance(mapping, dict) else []
    if not files or not all(is_file_name(file) and "/" not in file for file in files):
        raise FactError(f"`{index}` has no `weight_map` from tensors to files in the same folder")
    return tuple(sorted(set(files)))


def _with_missing_shards(found: list[str]) -> list[str]:
    """`model-00001-of-00003.safetensors` alone promises two more."""
    complete = set(found)
    for name in found:
        match = _SHARD.search(name)
        count = int(match[2]) if match else 0
        if match and count <= 10_000:
            stem = name[: match.start()]
            complete |= {f"{stem}-{n:05d}-of-{match[2]}.safetensors" for n in range(1, count + 1)}
    return sorted(complete)


MAX_FILES = 20_000
_TEMPLATES = "additional_chat_templates"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def list_files(folder: Path) -> dict[str, ModelFile]:
    """The regular files of a directory by name, and the chat templates below it. Raises FactError."""
    files = dict(_entries(folder, prefix=""))
    if (folder / _TEMPLATES).is_dir():
        files.update(_entries(folder / _TEMPLATES, prefix=f"{_TEMPLATES}/"))
    return dict(sorted(files.items()))


def _entries(folder: Path, *, prefix: str) -> Iterator[tuple[str, ModelFile]]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_FILES:
                    raise FactError(f"`{folder}` contains more than {MAX_FILES} files")
                found = _file(entry)
                if found:
                    yield prefix + entry.name, found
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFound(f"there is no directory `{folder}`") from error
    except (OSError, ValueError) as error:
        why = system_reason(error) if isinstance(error, OSError) else str(error)
        raise FactError(f"cannot read the directory `{folder}`: {why}") from error


def _file(entry: os.DirEntry[str]) -> ModelFile | None:
    """None for what is not a file, for links that lead nowhere or in circles, and for names that are no text."""
    try:
        status = entry.stat()
        # the Hub cache names a large file's blob by the file's sha256
        blob = Path(entry.path).readlink().name if entry.is_symlink() else ""
        entry.name.encode()
    except (OSError, UnicodeEncodeError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return ModelFile(status.st_size, blob if _SHA256.fullmatch(blob) else None, Path(entry.path))


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
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = _header_length(stream.read(64), name=path.name, size_bytes=size)
            stream.seek(LENGTH_BYTES)
            data = stream.read(length)
    except OSError as error:
        raise FactError(f"cannot read `{path.name}`: {system_reason(error)}") from error
    return parse_header(data, name=path.name, size_bytes=size)


def _header_length(start: bytes, *, name: str, size_bytes: int) -> int:
    """How long the header is, by the first bytes of a file of this size."""
    if start.startswith(LFS_POINTER[:LENGTH_BYTES]):
        raise FactError(f"`{name}` is a Git LFS pointer: the file itself was not downloaded")
    if len(start) < LENGTH_BYTES:
        raise FactError(f"`{name}` is truncated: it has {len(start)} bytes")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > size_bytes - LENGTH_BYTES:
        raise FactError(
            f"`{name}` is truncated, or is not a safetensors file: its header would be {length} bytes long"
        )
    if length > MAX_HEADER_BYTES:
        raise FactError(f"the header of `{name}` is larger than {MAX_HEADER_BYTES >> 20} MiB")
    return length


def parse_header(data: bytes, *, name: str, size_bytes: int) -> Header:
    """The tensors of a header whose file has this size. Raises FactError, UnknownType for a new type."""
    try:
        content = json.loads(data, object_pairs_hook=_unique, parse_int=whole_number)
    except _Duplicate as error:
        raise FactError(f"the header of `{name}` has {error} twice") from error
    except (ValueError, RecursionError) as error:
        raise FactError(f"the header of `{name}` is not valid JSON: {json_problem(error, data)}") from error
    if not isinstance(content, dict):
        raise FactError(f"the header of `{name}` is not a JSON object")
    content.pop("__metadata__", None)
    room = size_bytes - LENGTH_BYTES - len(data)
    tensors, end = tensors_of(content, name=name, room_bytes=room)
    if tensors and not end:
        raise FactError(f"the tensors of `{name}` are all empty")
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
            raise FactError(f"the tensors of `{name}` have gaps, or overlap")
        filled = end
    if room_bytes is not None and filled > room_bytes:
        missing = filled - room_bytes
        raise FactError(f"`{name}` is truncated: {missing} of {filled} bytes of its tensors are missing")
    return tensors, filled


def _tensor(value: Any, *, key: str, name: str) -> tuple[Tensor, int, int]:
    """One entry of a header, and where its bytes begin and end."""
    entry: dict[str, Any] = value if isinstance(value, dict) else {}
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not (isinstance(dtype, str) and _numbers(shape) and _numbers(offsets) and len(offsets) == 2):
        raise FactError(f"in `{name}`, tensor {_quoted(key)} has no valid type, shape and position")
    if dtype not in BITS:
        shown = dtype if _TYPE_NAME.fullmatch(dtype) else "with an invalid name"
        raise UnknownType(f"`{name}` has a tensor of a type that specserve does not know: {shown}")
    begin, end = offsets
    bits = BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _MAX_DIMENSION:
            break  # too large in any case: do not multiply on
    if bits != 8 * (end - begin):
        text = f"tensor {_quoted(key)} has {end - begin} bytes, which does not match its shape"
        raise FactError(f"in `{name}`, {text}")
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
