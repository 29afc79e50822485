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
from typing import Any, Literal, TypeVar

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
    """Its place on this machine, if it has one."""
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
    """Every tensor of the safetensors files; None if there are none, or they could not be read."""
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""
    config_format: Literal["hf", "mistral"] = "hf"
    """mistral: there is a params.json and no config.json; `config` then has the keys of config.json all the same."""
    weight_files: tuple[str, ...] = ()
    """The files that vLLM would load the weights from."""
    is_whole: bool = True
    """Whether `config` is all of config.json; of some published models, only the fields that memory depends on are."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Files that vLLM could not read, by name, with what is wrong: a weight file cut short, a pointer of Git LFS."""

    __hash__ = object.__hash__
    """By identity: what is computed of a model is remembered for the object that was read."""

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
            raise FactError(f"a model has more than {MAX_TENSORS} tensors")
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
            raise FactError(f"`{piece[:40]}` is not a range of numbers")
        found += range(first, last + 1)
    return found


def _tensor(text: object) -> Tensor:
    match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
    if not match or match[1] not in BITS:
        raise FactError("a tensor must be written like `BF16 4096x4096`")
    shape = () if match[2] == "scalar" else tuple(int(size) for size in match[2].split("x"))
    if math.prod(shape) > _MAX_DIMENSION:
        raise FactError("a tensor has an impossible number of elements")
    return Tensor(match[1], shape)


_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIZE = 1 << 62
_MAX_NAME = 500
_FILE_KEYS = ("size", "sha256", "header_sha256")


def to_record(facts: ModelFacts) -> dict[str, Any]:
    """The facts in JSON's types, the same for the same model on every machine."""
    return {
        "model": facts.model,
        "revision": facts.revision,
        "commit": facts.commit,
        "config": dict(facts.config),
        "config_format": facts.config_format,
        "generation_config": None if facts.generation_config is None else dict(facts.generation_config),
        "files": {
            name: {
                key: value
                for key, value in zip(
                    _FILE_KEYS, (file.size_bytes, file.sha256, file.header_sha256), strict=True
                )
                if value is not None
            }
            for name, file in sorted(facts.files.items())
        },
        "weight_files": list(facts.weight_files),
        "tensors": None if facts.tensors is None else compact(facts.tensors),
        "broken": dict(sorted(facts.broken.items())),
        "notes": list(facts.notes),
    }


def from_record(record: object, *, origin: Origin) -> ModelFacts:
    """The facts of a record. Raises FactError for what `to_record` does not write."""
    values = _as(dict, record, "a model")
    commit, tensors = values.get("commit"), values.get("tensors")
    generation, revision = values.get("generation_config"), values.get("revision")
    form = values.get("config_format", "hf")
    if form not in ("hf", "mistral"):
        raise FactError("`config_format` must be `hf` or `mistral`")
    if commit is not None and not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise FactError("`commit` must be 40 hexadecimal digits")
    broken = _as(dict, values.get("broken", {}), "broken")
    weights = _as(list, values.get("weight_files", []), "weight_files")
    return ModelFacts(
        model=_as(str, values.get("model"), "model"),
        origin=origin,
        config=_as(dict, values.get("config"), "config"),
        revision=None if revision is None else _as(str, revision, "revision"),
        commit=commit,
        generation_config=None if generation is None else _as(dict, generation, "generation_config"),
        files=dict(_file(*item) for item in _as(dict, values.get("files"), "files").items()),
        tensors=None if tensors is None else expand(_as(dict, tensors, "tensors")),
        notes=tuple(_as(str, note, "notes") for note in _as(list, values.get("notes", []), "notes")),
        config_format=form,
        weight_files=tuple(map(_file_name, weights)),
        broken={name: _as(str, why, "broken") for name, why in broken.items()},
    )


_Kind = TypeVar("_Kind", dict[str, Any], list[Any], str)


def _as(kind: type[_Kind], value: object, what: str) -> _Kind:
    if not isinstance(value, kind):
        names: dict[type, str] = {dict: "a mapping", list: "a list", str: "text"}
        raise FactError(f"`{what}` is not {names[kind]}")
    return value


def _file(name: object, record: object) -> tuple[str, ModelFile]:
    text = _file_name(name)
    values = _as(dict, record, f"files.{text[:80]}")
    size, sha256, header = (values.get(key) for key in _FILE_KEYS)
    if size is not None and (type(size) is not int or not 0 <= size < _MAX_SIZE):
        raise FactError(f"`size` of `{text[:80]}` is not a valid size")
    for value in (sha256, header):
        if value is not None and not (isinstance(value, str) and _SHA256.fullmatch(value)):
            raise FactError(f"a hash of `{text[:80]}` is not a SHA-256 hash")
    return text, ModelFile(size, sha256, header_sha256=header)


def is_file_name(name: object) -> bool:
    """Whether it names a file inside of a folder, and cannot lead out of it."""
    if not isinstance(name, str) or len(name) > _MAX_NAME or "\0" in name:
        return False
    is_text = name.encode(errors="replace").decode() == name
    return is_text and {"", ".", ".."}.isdisjoint(name.split("/"))


def _file_name(name: object) -> str:
    if not is_file_name(name):
        raise FactError(f"`{str(name)[:80]}` is not a valid name of a file in a repository")
    return str(name)


_FILE = Path(__file__).with_name("published.json")


def published(model: str) -> ModelFacts | None:
    """A model's published config.json, or the fields of it that memory depends on; None if specserve has neither.

    It has no files, no tensors and no commit: nobody has read these here.
    """
    entry = _published().get(model)
    if entry is None:
        return None
    return ModelFacts(model, "published", entry["config"], is_whole=entry.get("is_whole", False))


@lru_cache
def _published() -> dict[str, Mapping[str, Any]]:
    models: dict[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
    return models


def published_weights(model: str, part: Literal["weights", "mtp"]) -> Mapping[str, float] | None:
    """Bytes of a published model, or of its prediction layers, by how they are divided; None if not known."""
    weights: Mapping[str, float] | None = _published().get(model, {}).get(part)
    return weights
