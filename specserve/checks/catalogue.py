"""The catalogue: every rule, one line each, by code."""

from __future__ import annotations

from specserve.checks import arguments, speculation
from specserve.checks.rule import Rule

RULES: tuple[Rule, ...] = (
    speculation.retyped_draft,
    arguments.unknown_argument,
    arguments.misplaced_argument,
    speculation.split_draft,
    arguments.wrong_argument_value,
    arguments.unknown_variable,
    arguments.secret_in_profile,
    arguments.open_bind,
    speculation.too_many_speculative_tokens,
    arguments.remote_code,
)
