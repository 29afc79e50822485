"""Which model classes and multi-token heads each known vLLM has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from specserve.vllm.facts import items, merged

Kind = Literal["text", "pooling", "multimodal", "draft", "transformers"]
Trait = Literal["pp", "eagle3", "aux_pp", "lora"]


class ModelClass(NamedTuple):
    """One name of vLLM's model registry.

    `kind`: what it serves; `draft` only speculates, `transformers` runs on the backend of that
    library.
    """

    kind: Kind
    traits: frozenset[str] = frozenset()
    """`pp`: pipeline stages; `lora`: adapters; `eagle3`: it hands hidden states to a head;
    `aux_pp`: over stages, too. `?`: it could not be imported, and may have more."""


class Registry(NamedTuple):
    """What one vLLM version can load."""

    classes: Mapping[str, ModelClass]
    """By the name that `architectures` of config.json has."""
    mtp: frozenset[str]
    """Model types and architectures that `method: mtp` takes; each stands as vLLM compares it."""
    speculators: frozenset[str]
    """Values of `speculators_model_type` that it reads."""

    def class_of(self, architectures: Iterable[str]) -> ModelClass | None:
        """That of the first of these names that it knows, which is the one it takes."""
        return next((self.classes[name] for name in architectures if name in self.classes), None)

    def has_kind(self, architectures: Iterable[str], kind: Kind) -> bool:
        """Whether the class that it takes is of this kind."""
        found = self.class_of(architectures)
        return found is not None and found.kind == kind

    def lacks(self, architectures: Iterable[str], trait: Trait) -> bool:
        """Whether it is known to serve such a model without a trait, such as adapters."""
        found = self.class_of(architectures)
        serves = found is not None and found.kind in ("text", "multimodal")
        return found is not None and serves and not found.traits & {trait, "?"}


@lru_cache
def registry(minor: str) -> Registry:
    """The registry of a known minor version, `0.33`."""
    data = merged("models")
    classes = {}
    for name, item in items(data["classes"], minor).items():
        kind, *traits = item["is"].split()
        classes[name] = ModelClass(kind, frozenset(traits))
    return Registry(
        classes=classes,
        mtp=frozenset(items(data["mtp"], minor)),
        speculators=frozenset(items(data["speculators"], minor)),
    )
