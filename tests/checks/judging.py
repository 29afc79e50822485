"""What the tests of rules share: findings about a few lines, and models that are no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.checks.rule import Context
from specserve.checks.run import run_rules, run_rules_on_profile
from specserve.diagnostics import Finding
from specserve.models.facts import ModelFacts, Tensor
from specserve.profile.schema import Profile
from tests.checks.recipes import CATALOGUE


def judge(profile: Profile) -> list[Finding]:
    """What the rules find that look at nothing but the profile."""
    return run_rules_on_profile(profile).findings


def judged(context: Context) -> list[Finding]:
    """What the rules find that have what they need."""
    return run_rules(context).findings


def facts(config: Mapping[str, Any], **more: Any) -> ModelFacts:
    """A model of which no more is known than its config.json, unless `more` says it."""
    return ModelFacts(model="org/model", origin="cache", config=config, **more)


def recipe_facts(parts: Any) -> ModelFacts:
    """A model of the catalogue by its name, with changes to its config.json; `tensors` have a shape, maybe a type."""
    config: dict[str, Any] = {}
    for part in parts if isinstance(parts, list) else [parts]:
        config |= CATALOGUE[part].config if isinstance(part, str) else part
    shapes, generation = config.pop("tensors", None), config.pop("generation_config", None)
    tensors = {
        name: Tensor(*((shape[0], tuple(shape[1:])) if isinstance(shape[0], str) else ("BF16", tuple(shape))))
        for name, shape in (shapes or {}).items()
    }
    return facts(config, tensors=tensors if shapes else None, generation_config=generation)
