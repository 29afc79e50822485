"""From a model's files to its facts, whoever reads the files; and from a directory."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError, ModelNotFound
from specserve.models.bounded import parse_object, read_regular, reason
from specserve.models.config import as_hugging_face
from specserve.models.facts import ModelFacts, ModelFile, Origin, Tensor
from specserve.models.weights import (
    CONFIG,
    GENERATION,
    MAX_INDEX_BYTES,
    MAX_OBJECT_BYTES,
    PARAMS,
    Header,
    UnknownType,
    is_index,
    read_header,
    weight_files,
)

ConfigFormat = Literal["hf", "mistral"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's files are read; each function takes a file's name and raises FactError."""

    place: str
    """For messages: the directory, or the Hub id."""
    files: Mapping[str, ModelFile]
    read_object: Callable[[str], Mapping[str, Any]]
    read_header: Callable[[str], Header]


def assemble(
    source: Source,
    *,
    model: str,
    origin: Origin,
    revision: str | None = None,
    commit: str | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """The facts of these files. Raises FactError without a readable configuration; the rest may be broken.

    `need_config`: False for a repository that has a tokenizer only.
    """
    config, config_format = _config(source) if need_config or CONFIG in source.files else ({}, "hf")
    notes: list[str] = []
    broken: dict[str, str] = {}
    generation = None
    if GENERATION in source.files:
        try:
            generation = source.read_object(GENERATION)
        except FactError as error:
            broken[GENERATION] = error.message
    try:
        weights = weight_files(source.files, read_index=source.read_object)
    except FactError as error:
        weights = ()
        notes.append(error.message)
    hashes: dict[str, str] = {}
    tensors = _tensors(source, weights, broken=broken, notes=notes, hashes=hashes)
    files = {
        name: replace(file, header_sha256=hashes[name]) if name in hashes else file
        for name, file in source.files.items()
    }
    return ModelFacts(
        model=model,
        origin=origin,
        config=config,
        revision=revision,
        commit=commit,
        generation_config=generation,
        files=files,
        tensors=tensors,
        notes=(*notes, *broken.values()),
        config_format=config_format,
        weight_files=weights,
        broken=broken,
    )


def _config(source: Source) -> tuple[Mapping[str, Any], ConfigFormat]:
    if CONFIG in source.files:
        return source.read_object(CONFIG), "hf"
    if PARAMS in source.files:
        return as_hugging_face(source.read_object(PARAMS)), "mistral"
    weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in source.files)
    hint = "it holds weights without their configuration" if weights else "is it the right place?"
    raise FactError(f"`{source.place}` has no {CONFIG}", hint=hint)


def _tensors(
    source: Source,
    weights: tuple[str, ...],
    *,
    broken: dict[str, str],
    notes: list[str],
    hashes: dict[str, str],
) -> dict[str, Tensor] | None:
    """Every tensor of the safetensors files; None where there are none, or one cannot be read.

    What is wrong with a file goes to `broken`, what is unknown to `notes`, each header's sha256 to `hashes`.
    """
    names = [name for name in weights if name.endswith(".safetensors")]
    tensors: dict[str, Tensor] = {}
    complete = bool(names)
    for name in names:
        try:
            if name not in source.files:
                raise FactError(f"`{name}` is missing")
            header = source.read_header(name)
            tensors.update(header.tensors)
            hashes[name] = header.sha256
        except UnknownType as error:
            notes.append(error.message)
            complete = False
        except FactError as error:
            broken[name] = error.message
            complete = False
    return tensors if complete else None


MAX_FILES = 20_000
NOTE = "NOTE.txt"
"""A sentence about a model, in its folder, that is shown to whoever serves it or sends it a request."""
_MAX_NOTE_BYTES = 500
_TEMPLATES = "additional_chat_templates"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_folder(
    folder: Path,
    *,
    model: str,
    origin: Origin,
    revision: str | None = None,
    commit: str | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """The facts of a directory. Raises ModelNotFound without one, FactError without a readable configuration."""
    source = Source(
        str(folder),
        list_files(folder),
        read_object=lambda name: read_object(folder / name),
        read_header=lambda name: read_header(folder / name),
    )
    return assemble(
        source, model=model, origin=origin, revision=revision, commit=commit, need_config=need_config
    )


def model_note(folder: Path) -> str | None:
    """The text of NOTE.txt in a model's folder, in one line; None if there is none that can be read."""
    try:
        data = read_regular(folder / NOTE, limit_bytes=_MAX_NOTE_BYTES)
    except (FactError, ValueError):  # ValueError: a null byte in the name
        return None
    return " ".join(data.decode(errors="replace").split()) or None


def list_files(folder: Path) -> dict[str, ModelFile]:
    """The regular files of a directory by name, and the chat templates below it. Raises FactError."""
    files = dict(_entries(folder, prefix=""))
    if (folder / _TEMPLATES).is_dir():
        files.update(_entries(folder / _TEMPLATES, prefix=f"{_TEMPLATES}/"))
    return dict(sorted(files.items()))


def _entries(folder: Path, *, prefix: str) -> Iterator[tuple[str, ModelFile]]:
    count = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > MAX_FILES:
                    raise FactError(f"`{folder}` holds more than {MAX_FILES} files")
                found = _file(entry)
                if found:
                    yield prefix + entry.name, found
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFound(f"there is no directory `{folder}`") from error
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise FactError(f"cannot read the directory `{folder}`: {why}") from error


def _file(entry: os.DirEntry[str]) -> ModelFile | None:
    """None for what is no file, for links that lead nowhere or in circles, and for names that are no text."""
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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FactError."""
    limit = MAX_INDEX_BYTES if is_index(path.name) else MAX_OBJECT_BYTES
    return parse_object(read_regular(path, limit_bytes=limit), where=str(path))
