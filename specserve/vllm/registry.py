"""Which model classes, quantizations and multi-token heads each vLLM version knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from specserve.vllm.arguments import json_lines

Kind = Literal["text", "pooling", "multimodal", "draft", "transformers"]
Trait = Literal["pp", "eagle3", "aux_pp", "lora"]
_DATA = Path(__file__).parent / "registries"


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One name of vLLM's model registry.

    `kind`: what it serves; `draft` only speculates, `transformers` runs on the backend of that library.
    """

    kind: Kind
    traits: frozenset[Trait] = frozenset()
    """`pp` pipeline stages, `lora` adapters, `eagle3` hands hidden states to a head, `aux_pp` does so over stages."""
    complete: bool = True
    """Whether the absence of a trait is known too: every base class was found in the sources."""

    def lacks(self, trait: Trait) -> bool:
        """Whether the class is known not to have this."""
        return self.complete and trait not in self.traits


@dataclass(frozen=True, slots=True)
class Registry:
    """What one vLLM version can load."""

    version: str
    classes: Mapping[str, ModelClass]
    """By the name that `architectures` of config.json has."""
    removed: Mapping[str, str]
    """Names of former versions: the last version, or the plug-in that has it now."""
    quantizations: tuple[str, ...]
    mtp: frozenset[str]
    """Model types and architectures that `method: mtp` takes; each stands as vLLM compares it."""
    speculators: frozenset[str] = field(default_factory=frozenset)
    """Values of `speculators_model_type` that it reads."""


@lru_cache
def registry(minor: str) -> Registry:
    """The registry of a known minor version, `0.33`. Raises FileNotFoundError for another."""
    return loads((_DATA / f"vllm-{minor}.json").read_text(encoding="utf-8"))


@lru_cache
def transformers_names() -> frozenset[str]:
    """The model classes of the transformers library that the newest known vLLM runs with."""
    text = (_DATA / "transformers.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def dumps(known: Registry) -> str:
    """The registry as JSON: sorted, a class a line, so that `diff` compares versions."""
    data = {
        "version": known.version,
        "quantizations": known.quantizations,
        "mtp": sorted(known.mtp),
        "speculators": sorted(known.speculators),
        "classes": {
            name: [item.kind, *sorted(item.traits), *([] if item.complete else ["?"])]
            for name, item in known.classes.items()
        },
        "removed": known.removed,
    }
    return json_lines(data, whole=("version", "quantizations", "mtp", "speculators"))


def loads(text: str) -> Registry:
    """What `dumps` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    data = json.loads(text)
    return Registry(
        version=data["version"],
        classes={name: _class(*item) for name, item in data["classes"].items()},
        removed=data["removed"],
        quantizations=tuple(data["quantizations"]),
        mtp=frozenset(data["mtp"]),
        speculators=frozenset(data["speculators"]),
    )


def _class(kind: Kind, *rest: str) -> ModelClass:
    traits = frozenset(item for item in rest if item != "?")
    return ModelClass(kind, traits, complete="?" not in rest)  # type: ignore[arg-type]
