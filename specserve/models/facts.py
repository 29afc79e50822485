"""What is known of a model without its weights, and the same as JSON: what a lock and the fact cache hold."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError

Origin = Literal["directory", "cache", "hub", "lock", "published"]

BITS: Mapping[str, float] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits per element of the types in a safetensors header. Source: safetensors 0.8, `Dtype`."""


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
    """Known for large files of the Hub, and for files of a lock."""
    path: Path | None = None
    """Where it lies on this machine, where it does."""
    header_sha256: str | None = None
    """Of a safetensors header: what a lock knows of weights that lie in a directory."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: its configuration, files and tensors. Nothing of it was executed."""

    model: str
    """As the profile names it: a Hub id, or a path."""
    origin: Origin
    config: Mapping[str, Any] = field(repr=False)
    """config.json."""
    revision: str | None = None
    commit: str | None = None
    """The Hub commit that was read; None for a directory."""
    generation_config: Mapping[str, Any] | None = field(default=None, repr=False)
    files: Mapping[str, ModelFile] = field(default_factory=dict, repr=False)
    """By name; small ones (json, tokenizer files) have a `path` to read."""
    tensors: Mapping[str, Tensor] | None = field(default=None, repr=False)
    """Every tensor of the safetensors files; None where there are none, or they could not be read."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""
    config_format: Literal["hf", "mistral"] = "hf"
    """mistral: there is a params.json and no config.json; `config` then has the keys of config.json all the same."""
    weight_files: tuple[str, ...] = ()
    """The files that vLLM would load the weights from."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Files that vLLM could not read, by name, with what is wrong: a weight file cut short, a pointer of Git LFS."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes that config.json names."""
        names = self.config.get("architectures")
        return tuple(str(name) for name in names) if isinstance(names, list) else ()


MAX_TENSORS = 1_000_000
_MAX_DIMENSION = 1 << 62
_MAX_NUMBERS = 8
"""Of a name that is made shorter; more would be no layer and no expert."""
_RANGES = re.compile(r"(?<!\{)\{([0-9,-]{1,100000})\}(?!\})")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
_TENSOR = re.compile(r"([A-Z0-9_]{1,16}) ((?:[0-9]{1,19}(?:x[0-9]{1,19}){0,31})|scalar)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
Index = tuple[int, ...]


def compact(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Patterns of names, sorted, each with its type and shape: `BF16 28672x8192`."""
    groups: dict[tuple[tuple[str | None, ...], Tensor], set[Index]] = defaultdict(set)
    written = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        numbers = tuple(int(part) for part in parts if _NUMBER.fullmatch(part))
        if "{" in name or "}" in name or len(numbers) > _MAX_NUMBERS:
            written[name.replace("{", "{{").replace("}", "}}")] = _tensor_text(tensor)
            continue
        template = tuple(None if _NUMBER.fullmatch(part) else part for part in parts)
        groups[template, tensor].add(numbers)
    for (template, tensor), indices in groups.items():
        for ranges in _boxes(indices):
            box = iter(ranges)
            name = ".".join(_braced(next(box)) if part is None else part for part in template)
            written[name] = _tensor_text(tensor)
    return dict(sorted(written.items()))


def _boxes(indices: set[Index]) -> Iterator[tuple[str, ...]]:
    """Products of ranges that together are these indices: first numbers with equal rests go together."""
    if not next(iter(indices)):
        yield ()
        return
    rests: dict[int, set[Index]] = defaultdict(set)
    for first, *rest in indices:
        rests[first].add(tuple(rest))
    firsts: dict[frozenset[Index], list[int]] = defaultdict(list)
    for number, its_rests in rests.items():
        firsts[frozenset(its_rests)].append(number)
    for same, numbers in firsts.items():
        for box in _boxes(set(same)):
            yield (_ranges(sorted(numbers)), *box)


def _ranges(numbers: Iterable[int]) -> str:
    """0-3,7 for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _braced(ranges: str) -> str:
    """One number stands as it is."""
    return ranges if ranges.isdigit() else f"{{{ranges}}}"


def _tensor_text(tensor: Tensor) -> str:
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def expand(written: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors by name. Raises FactError for what `compact` does not write, and for more than a million."""
    tensors: dict[str, Tensor] = {}
    for pattern, text in written.items():
        tensor = _tensor(text)
        pieces = _RANGES.split(pattern)
        numbers = [_numbers(ranges) for ranges in pieces[1::2]]
        if len(tensors) + math.prod(map(len, numbers)) > MAX_TENSORS:
            raise FactError(f"it has more than {MAX_TENSORS} tensors")
        for chosen in itertools.product(*numbers):
            ends = (*map(str, chosen), "")
            name = "".join(itertools.chain.from_iterable(zip(pieces[::2], ends, strict=True)))
            tensors[name.replace("{{", "{").replace("}}", "}")] = tensor
    return tensors


def _numbers(ranges: str) -> list[int]:
    found: list[int] = []
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or len(found) + last - first >= MAX_TENSORS:
            raise FactError(f"`{piece[:40]}` is no range of numbers")
        found += range(first, last + 1)
    return found


def _tensor(text: object) -> Tensor:
    match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
    if not match or match[1] not in BITS:
        raise FactError("a tensor is written like `BF16 4096x4096`")
    shape = () if match[2] == "scalar" else tuple(int(size) for size in match[2].split("x"))
    if math.prod(shape) > _MAX_DIMENSION:
        raise FactError("a tensor has more elements than a disk has bytes")
    return Tensor(match[1], shape)


_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIZE = 1 << 62
_MAX_NAME = 500


def to_record(facts: ModelFacts) -> dict[str, Any]:
    """The facts in JSON's types, the same for the same model on every machine."""
    return {
        "model": facts.model,
        "revision": facts.revision,
        "commit": facts.commit,
        "config": dict(facts.config),
        "config_format": facts.config_format,
        "generation_config": None if facts.generation_config is None else dict(facts.generation_config),
        "files": {name: _file_record(file) for name, file in sorted(facts.files.items())},
        "weight_files": list(facts.weight_files),
        "tensors": None if facts.tensors is None else compact(facts.tensors),
        "broken": dict(sorted(facts.broken.items())),
        "notes": list(facts.notes),
    }


def _file_record(file: ModelFile) -> dict[str, Any]:
    known = {"size": file.size_bytes, "sha256": file.sha256, "header_sha256": file.header_sha256}
    return {key: value for key, value in known.items() if value is not None}


def from_record(record: object, *, origin: Origin) -> ModelFacts:
    """The facts of a record. Raises FactError where it is none."""
    values = _mapping(record, "a model")
    tensors = values.get("tensors")
    generation = values.get("generation_config")
    form = values.get("config_format", "hf")
    if form not in ("hf", "mistral"):
        raise FactError("`config_format` is neither `hf` nor `mistral`")
    return ModelFacts(
        model=_text(values.get("model"), "model"),
        origin=origin,
        config=_mapping(values.get("config"), "config"),
        revision=_optional_text(values.get("revision"), "revision"),
        commit=_commit(values.get("commit")),
        generation_config=None if generation is None else _mapping(generation, "generation_config"),
        files={
            _file_name(name): _file(file, name)
            for name, file in _mapping(values.get("files"), "files").items()
        },
        tensors=None if tensors is None else expand(_mapping(tensors, "tensors")),
        notes=tuple(_text(note, "notes") for note in _list(values.get("notes", []), "notes")),
        config_format=form,
        weight_files=tuple(
            _file_name(name) for name in _list(values.get("weight_files", []), "weight_files")
        ),
        broken={
            name: _text(why, "broken") for name, why in _mapping(values.get("broken", {}), "broken").items()
        },
    )


def _file(record: object, name: str) -> ModelFile:
    values = _mapping(record, f"files.{name[:80]}")
    size = values.get("size")
    if size is not None and (type(size) is not int or not 0 <= size < _MAX_SIZE):
        raise FactError(f"`size` of `{name[:80]}` is no size")
    hashes = [values.get(key) for key in ("sha256", "header_sha256")]
    for value in hashes:
        if value is not None and not (isinstance(value, str) and _SHA256.fullmatch(value)):
            raise FactError(f"a hash of `{name[:80]}` is no sha256")
    return ModelFile(size, hashes[0], header_sha256=hashes[1])


def is_file_name(name: object) -> bool:
    """Whether it names a file inside of a folder, and cannot lead out of it."""
    if not isinstance(name, str) or len(name) > _MAX_NAME or "\0" in name:
        return False
    is_text = name.encode(errors="replace").decode() == name
    return is_text and {"", ".", ".."}.isdisjoint(name.split("/"))


def _file_name(name: object) -> str:
    if not is_file_name(name):
        raise FactError(f"`{str(name)[:80]}` is no name of a file in a repository")
    return str(name)


def _commit(value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and _COMMIT.fullmatch(value)):
        raise FactError("`commit` is no commit")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FactError(f"`{what}` is no mapping")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise FactError(f"`{what}` is no list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise FactError(f"`{what}` is no text")
    return value


def _optional_text(value: object, what: str) -> str | None:
    return None if value is None else _text(value, what)


_FILE = Path(__file__).with_name("published.json")


def published(model: str) -> ModelFacts | None:
    """The fields of a model's config.json that memory depends on; None if they do not ship with specserve.

    It has no files, no tensors and no commit: nobody has read these here.
    """
    entry = _entries().get(model)
    return ModelFacts(model, "published", entry["config"]) if entry else None


@lru_cache
def _entries() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
    return loaded
