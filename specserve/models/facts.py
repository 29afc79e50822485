"""What is known of a model without its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Origin = Literal["directory", "cache", "hub", "lock", "published"]
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
BITS: Mapping[str, float] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
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


_FILE = Path(__file__).with_name("published.json")


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
    return models


def published_weights(model: str, part: Literal["weights", "mtp"]) -> Mapping[str, float] | None:
    """Bytes of a published model or its prediction layers, by how they are divided, if known."""
    return _published().get(model, {}).get(part)
