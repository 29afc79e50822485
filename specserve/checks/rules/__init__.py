"""The catalogue of rules: a module for each family."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specserve.checks.rule import Rule

_FAMILIES = (
    "drafts",
    "hardware",
    "models",
    "pairs",
    "parallelism",
    "revisions",
    "serving",
    "speculation",
    "vllm",
)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    from specserve.checks.rule import Rule

    modules = [import_module(f"{__name__}.{family}") for family in _FAMILIES]
    found = [item for module in modules for item in vars(module).values() if isinstance(item, Rule)]
    return tuple(sorted({item.code: item for item in found}.values(), key=lambda item: item.code))
