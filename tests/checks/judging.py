"""What the tests of rules share: the codes found in a few lines."""

from __future__ import annotations

from specserve.checks.rule import Context
from specserve.checks.run import run_rules, run_rules_on_profile
from specserve.diagnostics import Finding
from specserve.profile.schema import Profile


def judge(profile: Profile) -> list[Finding]:
    """What the rules find that look at nothing but the profile."""
    return run_rules_on_profile(profile).findings


def judged(context: Context) -> list[Finding]:
    """What the rules find that have what they need."""
    return run_rules(context).findings


def of(code: str, profile: Profile) -> list[Finding]:
    """The findings of one rule."""
    return [finding for finding in judge(profile) if finding.code == code]


def places(code: str, profile: Profile) -> list[str]:
    """Where one rule applies, as dotted paths."""
    return [finding.span.path for finding in of(code, profile)]
