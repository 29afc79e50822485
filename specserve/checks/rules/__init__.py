"""The catalogue of rules: a module for each family. `lint` loads those that need nothing but the profile."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specserve.checks.rule import Rule

_STATIC = (
    "arguments", "hardware", "pairing", "parallelism", "revisions", "schedules", "serving", "site",
    "speculation", "steps_and_graphs", "tokenizers",
)  # fmt: skip
"""Families with rules that need nothing but the profile, or what specserve ships about published models."""
_OTHERS = ("contexts", "drafts", "heads", "memory", "models", "quantization")


def _load(families: tuple[str, ...]) -> tuple[Rule, ...]:
    from specserve.checks.rule import Rule

    modules = [import_module(f"{__name__}.{family}") for family in families]
    found = [item for module in modules for item in vars(module).values() if isinstance(item, Rule)]
    return tuple(sorted({item.code: item for item in found}.values(), key=lambda item: item.code))


@cache
def static_rules() -> tuple[Rule, ...]:
    """The rules that `lint` runs, by code."""
    return tuple(item for item in _load(_STATIC) if item.needs == "nothing" or item.published)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return _load((*_STATIC, *_OTHERS))
