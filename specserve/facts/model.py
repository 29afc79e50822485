"""What is known of a model without its weights. Knows no rule and no profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
