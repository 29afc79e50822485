"""What is known of a model without its weights: what its name means, and what its files say."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from specserve.errors import FactError, quoted, system_reason
from specserve.files import open_regular

Origin = Literal["directory", "cache", "hub", "lock", "published"]
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
BITS: Mapping[str, float] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits per element of the types in a safetensors header. Source: safetensors 0.8, `Dtype`."""
_HUB_ID = re.compile(
    r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_.-][\w.-]{0,95})?", re.ASCII
)
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./-]{0,250}", re.ASCII)
READS = "specserve reads directories and Hub ids of safetensors"
_FILE = Path(__file__).with_name("published.json")
_GENERATION = "generation_config.json"
MAX_BYTES = 64 << 20
"""Of what is read as a whole; the largest public tokenizer.json (262,144 entries) has 33 MB."""
_MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""
_INDEX = {
    "consolidated*.safetensors": "consolidated.safetensors.index.json",
    "*.safetensors": "model.safetensors.index.json",
}
_OF_TRAINING = ("training_args.", "optimizer.", "scheduler.", "scaler.")
_SMALL = (
    *("*.json", "*.model", "tokenizer.model.v*", "*.tiktoken", "*.jinja"),
    *("merges.txt", "vocab.txt"),
)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint, as its safetensors header says."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Its bytes in the checkpoint. Raises KeyError for an unknown type."""
        return math.ceil(math.prod(self.shape) * BITS[self.dtype] / 8)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a repository or directory."""

    size_bytes: int | None = None
    sha256: str | None = None
    """Known for small files of a lock."""
    path: Path | None = None
    """Its place on this machine, if it has one."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: its configuration, files and tensors. Nothing of it was executed."""

    model: str
    """As the profile names it: a Hub id, or a path."""
    origin: Origin
    config: Mapping[str, Any] = field(repr=False)
    revision: str | None = None
    commit: str | None = None
    """The Hub commit that was read; None for a directory."""
    generation_config: Mapping[str, Any] | None = field(default=None, repr=False)
    files: Mapping[str, ModelFile] = field(default_factory=dict, repr=False)
    """By name; small ones (json, tokenizer files) have a `path` to read."""
    tensors: Mapping[str, Tensor] | None = field(default=None, repr=False)
    """Every tensor of the safetensors files; None without any, or if one could not be read."""
    weight_files: tuple[str, ...] = ()
    """The files that vLLM would load the weights from."""
    is_whole: bool = True
    """Whether `config` is all of config.json; some published models have only a part of it."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with files that vLLM could not read, by name."""

    __hash__ = object.__hash__
    """By identity: what is computed of a model is remembered for the object that was read."""


def published(model: str) -> ModelFacts | None:
    """A model's published config.json, or those fields that memory depends on; None without it.

    It has no files, no tensors and no commit: nobody has read these here.
    """
    entry = _published().get(model, {})
    is_whole = entry.get("is_whole", False)
    return ModelFacts(model, "published", entry["config"], is_whole=is_whole) if entry else None


@lru_cache
def _published() -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = json.loads(_FILE.read_bytes())["models"]
    for name, entry in models.items():
        if base := models.get(entry.get("like", "")):
            config = {**base["config"], **entry.get("config", {})}
            models[name] = {**base, "is_whole": False, **entry, "config": config}
    return models


def published_weights(model: str, part: Literal["weights", "mtp"]) -> Mapping[str, float] | None:
    """Bytes of a published model or its prediction layers, by how they are divided, if known."""
    return _published().get(model, {}).get(part)


Tensors = Mapping[str, Tensor]


def is_small(name: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer, which is read as a whole."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _SMALL)


def at_once(work: Callable[[str], _Result], names: Iterable[str]) -> list[_Result]:
    """The results in order; after an error or Ctrl-C, what still runs is not waited for."""
    pool = ThreadPoolExecutor(8)
    try:
        return list(pool.map(work, names))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read_regular(path: Path, *, limit_bytes: int) -> bytes:
    """A regular file's bytes. Raises FactError for anything else, and for more than the limit."""
    try:
        with open_regular(path) as stream:
            data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {system_reason(error)}") from error
    if len(data) > limit_bytes:
        raise FactError(f"`{path}` is larger than {limit_bytes >> 20} MiB")
    return data


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FactError."""
    return _parse_object(read_regular(path, limit_bytes=MAX_BYTES), where=f"`{path}`")


def _parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FactError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FactError(f"{where} is not a JSON object")
    return value


def _list_files(folder: Path) -> dict[str, ModelFile]:
    """The regular files of a directory by name, without those further below. Raises FactError."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        return {path.name: ModelFile(path.stat().st_size, path=path) for path in paths}
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        text = f"there is no directory `{folder}` to read: {system_reason(error)}"
        raise FactError(text, cause="not_found") from error


def _weight_files(names: Iterable[str], folder: Path) -> tuple[str, ...]:
    """The safetensors files, else the .bin or .pt files, that vLLM loads; absent ones too.

    Absent are those of an index that are not there. Raises FactError for an index that is none.
    """
    top = sorted(name for name in names if "/" not in name)
    for pattern, index in _INDEX.items():
        found = [name for name in top if fnmatchcase(name, pattern)]
        if index in top and (found or pattern == "*.safetensors"):
            mapping = read_object(folder / index).get("weight_map")
            listed = mapping.values() if isinstance(mapping, dict) else ()
            if not listed or not all(isinstance(name, str) and "/" not in name for name in listed):
                raise FactError(f"`{index}` has no `weight_map` from tensors to files beside it")
            return tuple(sorted(set(listed)))
        if found:
            return tuple(found)
    weights = [name for name in top if not name.startswith(_OF_TRAINING)]
    by_type = ([name for name in weights if name.endswith(end)] for end in (".bin", ".pt"))
    return tuple(next(filter(None, by_type), ()))


def read_header(path: Path) -> Tensors:
    """What a local safetensors file says of itself. Raises FactError if vLLM could not open it.

    By hand: huggingface_hub takes 0.3 s to import, and does not see that a file is cut short.
    """
    name = path.name
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            data = stream.read(min(length, _MAX_HEADER_BYTES))
    except OSError as error:
        raise FactError(f"cannot read `{name}`: {system_reason(error)}") from error
    if len(start) < 8 or len(data) < length:
        raise FactError(f"`{name}` is truncated, a Git LFS pointer, or not a safetensors file")
    content = _parse_object(data, where=f"the header of `{name}`")
    content.pop("__metadata__", None)
    return tensors_of(content, name=name, room_bytes=size - 8 - length)


def tensors_of(entries: Mapping[str, Any], *, name: str, room_bytes: int | None) -> Tensors:
    """The tensors of a header's entries. Raises FactError.

    `room_bytes`: what stands behind the header, and may not be less than what the tensors take.
    """
    tensors, filled = {}, 0
    for key, entry in entries.items():
        try:
            tensor = Tensor(str(entry["dtype"]), tuple(entry["shape"]))
            begin, end = entry["data_offsets"]
            size, filled = end - begin, max(filled, end)
            is_sound = tensor.dtype not in BITS or tensor.size_bytes == size
        except (KeyError, TypeError, ValueError, OverflowError):
            is_sound = False
        if not is_sound:
            raise FactError(f"in `{name}`, type, shape and bytes of {quoted(key)} do not agree")
        tensors[key] = tensor
    if room_bytes is not None and filled > room_bytes:
        missing = f"{filled - room_bytes} of {filled} bytes of its tensors are missing"
        raise FactError(f"`{name}` is truncated: {missing}")
    return tensors


def read_folder(
    folder: Path,
    model: str,
    origin: Origin,
    *,
    files: Mapping[str, ModelFile] | None = None,
    read: Callable[[str], Tensors] | None = None,
) -> ModelFacts:
    """The facts of a directory. Raises FactError without one, or without a readable configuration.

    What has a tokenizer and no weights needs no configuration. `files`: those of a model whose
    small files alone lie there; `read`: the header of one of its weight files.
    """
    files = _list_files(folder) if files is None else files
    generation, weights, broken = None, _weight_files(files, folder), dict[str, str]()
    if CONFIG not in files and (weights or TOKENIZER not in files):
        cause = "unsupported" if "params.json" in files else "broken"  # Mistral's own format
        hint = "check that it is a model, and whole"
        raise FactError(f"`{model if read else folder}` has no {CONFIG}", hint=hint, cause=cause)
    config = read_object(folder / CONFIG) if CONFIG in files else {}
    with suppress(FactError):  # vLLM too does without one that cannot be read
        generation = read_object(folder / _GENERATION) if _GENERATION in files else None

    def header(name: str) -> Tensors | FactError:
        try:
            return read(name) if read else read_header(folder / name)
        except FactError as error:
            return error

    names = [name for name in weights if name.endswith(".safetensors") and name in files]
    tensors, is_known = dict[str, Tensor](), 0 < len(names) == len(weights)
    for name, said in zip(names, at_once(header, names), strict=True):
        if isinstance(said, FactError):
            broken[name], is_known = said.message, False
        else:
            tensors |= said
    is_known = is_known and all(tensor.dtype in BITS for tensor in tensors.values())
    broken |= {name: f"`{name}` is missing" for name in weights if name not in files}
    return ModelFacts(
        model,
        origin,
        config,
        generation_config=generation,
        files=files,
        tensors=tensors if is_known else None,
        weight_files=weights,
        broken=broken,
    )


def local_path(model: str, *, folder: Path | None = None) -> Path | None:
    """The path that a profile's `model` means; None for a Hub id.

    vLLM too takes what exists for a path.
    """
    here = folder or Path.cwd()
    try:
        if model.startswith((".", "/", "~")):
            return here / Path(model).expanduser()
        return here / model if model and (here / model).exists() else None
    except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no home
        return None


def refuse_no_hub_id(model: str, *, revision: str | None = None) -> None:
    """Raises FactError if these cannot be a repository and a revision of the Hub."""
    if re.search(r"(?i)^[a-z][a-z0-9+.-]*://|gguf(:|$)", model):
        raise FactError(f"`{model}` is a URL or GGUF: {READS}", cause="unsupported")
    if not _HUB_ID.fullmatch(model):
        text, hint = f"`{model}` is neither a directory nor a Hub id", "a path starts with ./"
        raise FactError(text, hint=hint, cause="not_found")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise FactError(f"`{revision}` cannot be a revision of `{model}`", cause="not_found")
