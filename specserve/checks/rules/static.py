"""The families with rules that need nothing but the profile: `lint` loads these, and no more than it runs."""

from __future__ import annotations

from types import ModuleType

from specserve.checks.rule import Rule
from specserve.checks.rules import (
    arguments,
    model_runner,
    nodes,
    pairing,
    revisions,
    schedule,
    serving,
    site,
    speculation,
    steps_and_graphs,
    verification,
)

FAMILIES = (
    arguments, model_runner, nodes, pairing, revisions, schedule, serving, site, speculation, steps_and_graphs,
    verification,
)  # fmt: skip


def rules_of(families: tuple[ModuleType, ...]) -> tuple[Rule, ...]:
    """The rules that these modules define, by code."""
    rules = [item for family in families for item in vars(family).values() if isinstance(item, Rule)]
    return tuple(sorted(rules, key=lambda rule: rule.code))


STATIC = tuple(rule for rule in rules_of(FAMILIES) if rule.needs == "nothing")
