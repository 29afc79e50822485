"""From a model's files to its facts, whoever reads the files: a directory, or the Hub over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.facts.mistral import as_hugging_face
from specserve.facts.model import ModelFacts, ModelFile, Origin, Tensor
from specserve.facts.safetensors import Header, UnknownType
from specserve.facts.weightfiles import CONFIG, GENERATION, PARAMS, weight_files

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
