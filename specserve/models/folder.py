"""A model's files: which ones vLLM reads, the headers of its weights, its configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from specserve.errors import FactError, quoted, system_reason
from specserve.files import open_regular
from specserve.models.facts import BITS, CONFIG, ModelFacts, ModelFile, Origin, Tensor
from specserve.models.jsonfile import LFS_POINTER, parse_object, read_object

GENERATION = "generation_config.json"
_MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""
_INDEX = {
    "consolidated*.safetensors": "consolidated.safetensors.index.json",
    "*.safetensors": "model.safetensors.index.json",
}
_SHARD = re.compile(r"(.*-)\d{5}-of-(\d{5})\.safetensors")
_NOT_FOR_INFERENCE = (
    "training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt",
)  # fmt: skip
_SMALL = ("*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt")


def is_small(name: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer, which is read as a whole."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _SMALL)


def list_files(folder: Path) -> dict[str, ModelFile]:
    """The regular files of a directory by name, without those further below. Raises FactError."""
    files = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # a link that leads nowhere
                    if entry.is_file():
                        size = entry.stat().st_size
                        files[entry.name] = ModelFile(size, path=Path(entry.path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FactError(f"there is no directory `{folder}`", cause="not_found") from error
    except (OSError, ValueError) as error:
        reason = system_reason(error)
        raise FactError(f"cannot read the directory `{folder}`: {reason}") from error
    return dict(sorted(files.items()))


def weight_files(
    names: Iterable[str], *, read_index: Callable[[str], Mapping[str, Any]]
) -> tuple[str, ...]:
    """The safetensors files, else the .bin or .pt files, that vLLM loads; absent ones too.

    Absent are those of an index, or of a set of shards, that are not there. Raises FactError for
    an index that is none.
    """
    top = sorted(name for name in names if "/" not in name)
    for pattern, index in _INDEX.items():
        found = [name for name in top if fnmatchcase(name, pattern)]
        if index in top and (found or pattern == "*.safetensors"):
            mapping = read_index(index).get("weight_map")
            listed = mapping.values() if isinstance(mapping, dict) else ()
            if not listed or not all(isinstance(name, str) and "/" not in name for name in listed):
                raise FactError(f"`{index}` has no `weight_map` from tensors to files beside it")
            return tuple(sorted(set(listed)))
        if found:
            shards = (match for name in found if (match := _SHARD.fullmatch(name)))
            promised = {
                f"{shard[1]}{number:05d}-of-{shard[2]}.safetensors"
                for shard in shards
                for number in range(1, int(shard[2]) + 1)
            }
            return tuple(sorted(promised.union(found)))
    for suffix in (".bin", ".pt"):
        if found := [name for name in top if name.endswith(suffix)]:
            return tuple(name for name in found if not name.endswith(_NOT_FOR_INFERENCE))
    return ()


Tensors = Mapping[str, Tensor]


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
    if start == LFS_POINTER[:8]:
        raise FactError(f"`{name}` is a Git LFS pointer: the file itself was not downloaded")
    if len(start) < 8 or len(data) < length:
        raise FactError(f"`{name}` is truncated, or is not a safetensors file")
    content = parse_object(data, where=f"the header of `{name}`")
    content.pop("__metadata__", None)
    return tensors_of(content, name=name, room_bytes=size - 8 - length)


def tensors_of(
    entries: Mapping[str, Any], *, name: str, room_bytes: int | None
) -> dict[str, Tensor]:
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
    *,
    model: str,
    origin: Origin,
    revision: str | None = None,
    commit: str | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """The facts of a directory.

    Raises FactError without one, or without a readable configuration.
    """

    def header(name: str) -> Tensors | FactError:
        try:
            return read_header(folder / name)
        except FactError as error:
            return error

    return assemble(
        ModelFacts(model, origin, {}, revision, commit, files=list_files(folder)),
        place=str(folder),
        need_config=need_config,
        headers_of=lambda names: map(header, names),
    )


def assemble(
    facts: ModelFacts,
    *,
    place: str,
    need_config: bool,
    headers_of: Callable[[list[str]], Iterable[Tensors | FactError]],
) -> ModelFacts:
    """What the files of a model say. Raises FactError without a readable configuration.

    `place`: the directory or Hub id, for messages; `need_config`: False for a repository with a
    tokenizer only; `headers_of`: those of weight files, in their order.
    """
    files, broken = facts.files, dict[str, str]()

    def content(name: str, *, folder: str = "") -> Mapping[str, Any]:
        # a lock holds what is broken, and knows no folder of this machine
        path, where = files[name].path, f"{folder}{name}"
        if path is None:
            raise FactError(f"`{where}` is too large to be read")
        return read_object(path, where=where)

    if CONFIG not in files and need_config:
        if "params.json" in files:
            raise FactError(
                f"`{place}` has params.json of Mistral's own and no {CONFIG}", cause="unsupported"
            )
        has_weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in files)
        hint = "it has weights without their configuration"
        hint = hint if has_weights else "check that it is a model's directory"
        raise FactError(f"`{place}` has no {CONFIG}", hint=hint)
    config = content(CONFIG, folder=f"{place}/") if CONFIG in files else {}
    generation = None
    if GENERATION in files:
        try:
            generation = content(GENERATION)
        except FactError as error:
            broken[GENERATION] = error.message
    weights: tuple[str, ...] = ()
    try:
        weights = weight_files(files, read_index=content)
    except FactError as error:
        broken[_INDEX["*.safetensors"]] = error.message
    names = [name for name in weights if name.endswith(".safetensors") and name in files]
    tensors: dict[str, Tensor] | None = {} if names and len(names) == len(weights) else None
    for name, header in zip(names, headers_of(names), strict=True):
        if isinstance(header, FactError):
            broken[name], tensors = header.message, None
        elif tensors is not None:
            tensors.update(header)
    if tensors and not all(tensor.dtype in BITS for tensor in tensors.values()):
        tensors = None
    sizes = {name: files[name].size_bytes if name in files else None for name in weights}
    broken |= {name: f"`{name}` is missing" for name in weights if name not in files}
    broken |= {name: f"`{name}` is empty" for name, size in sizes.items() if size == 0}
    return replace(
        facts,
        config=config,
        generation_config=generation,
        tensors=tensors,
        weight_files=weights,
        broken=broken,
    )
