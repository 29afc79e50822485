"""The families with rules that need nothing but the profile: `lint` loads these, and no more than it runs."""

from __future__ import annotations

from types import ModuleType

from specserve.checks import (
    arguments,
    nodes,
    pairing,
    revisions,
    runner,
    schedule,
    serving,
    site,
    slots,
    speculation,
    verification,
)
from specserve.checks.rule import Rule

FAMILIES = (
    arguments, nodes, pairing, revisions, runner, schedule, serving, site, slots, speculation, verification,
)  # fmt: skip


def rules_of(families: tuple[ModuleType, ...]) -> tuple[Rule, ...]:
    """The rules that these modules define, by code."""
    rules = [item for family in families for item in vars(family).values() if isinstance(item, Rule)]
    return tuple(sorted(rules, key=lambda rule: rule.code))


STATIC = tuple(rule for rule in rules_of(FAMILIES) if rule.needs == "nothing")
