"""From a model's files to its facts, whoever reads the files: a directory, or the Hub over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.errors import FactError
from specserve.facts.mistral import as_hugging_face
from specserve.facts.model import ModelFacts, ModelFile, Origin, Tensor
from specserve.facts.safetensors import Header, UnknownType
from specserve.facts.weightfiles import CONFIG, GENERATION, PARAMS, weight_files


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's files are read; each function takes a file's name and raises FactError."""

    place: str
    """For messages: the directory, or the Hub id."""
    files: Mapping[str, ModelFile]
    read_object: Callable[[str], Mapping[str, Any]]
    read_header: Callable[[str], Header]


def assemble(
    source: Source, *, model: str, origin: Origin, revision: str | None = None, commit: str | None = None
) -> ModelFacts:
    """The facts of these files. Raises FactError without a readable configuration; the rest may be broken."""
    config, config_format = _config(source)
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
    tensors = _tensors(source, weights, broken=broken, notes=notes)
    return ModelFacts(
        model=model,
        origin=origin,
        config=config,
        revision=revision,
        commit=commit,
        generation_config=generation,
        files=source.files,
        tensors=tensors,
        notes=(*notes, *broken.values()),
        config_format=config_format,
        weight_files=weights,
        broken=broken,
    )


def _config(source: Source) -> tuple[Mapping[str, Any], Literal["hf", "mistral"]]:
    if CONFIG in source.files:
        return source.read_object(CONFIG), "hf"
    if PARAMS in source.files:
        return as_hugging_face(source.read_object(PARAMS)), "mistral"
    weights = any(name.endswith((".safetensors", ".bin", ".gguf")) for name in source.files)
    hint = "it holds weights without their configuration" if weights else "is it the right place?"
    raise FactError(f"`{source.place}` has no {CONFIG}", hint=hint)


def _tensors(
    source: Source, weights: tuple[str, ...], *, broken: dict[str, str], notes: list[str]
) -> dict[str, Tensor] | None:
    """Every tensor of the safetensors files; None where there are none, or one cannot be read.

    What is wrong with a file goes to `broken`, what is unknown to `notes`.
    """
    names = [name for name in weights if name.endswith(".safetensors")]
    tensors: dict[str, Tensor] = {}
    complete = bool(names)
    for name in names:
        try:
            if name not in source.files:
                raise FactError(f"`{name}` is missing")
            tensors.update(source.read_header(name).tensors)
        except UnknownType as error:
            notes.append(error.message)
            complete = False
        except FactError as error:
            broken[name] = error.message
            complete = False
    return tensors if complete else None
