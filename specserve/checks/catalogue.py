"""The catalogue: every rule, one line each, by code."""

from __future__ import annotations

from specserve.checks import arguments, environment, host, speculation
from specserve.checks.rule import Rule

RULES: tuple[Rule, ...] = (
    speculation.retyped_draft,
    arguments.unknown_argument,
    arguments.misplaced_argument,
    speculation.split_draft,
    arguments.wrong_argument_value,
    environment.unknown_variable,
    environment.secret_in_profile,
    environment.open_bind,
    speculation.too_many_speculative_tokens,
    environment.remote_code,
    host.missing_compiler,
    host.unknown_vllm,
)
