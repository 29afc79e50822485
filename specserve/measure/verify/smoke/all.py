"""The smoke tests in their order. Knows what each needs, not what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from specserve.measure.verify.result import Smoke, Speculation
from specserve.measure.verify.session import Session
from specserve.measure.verify.smoke.refused import logit_bias, min_p
from specserve.measure.verify.smoke.requests import Test, not_ok, ok, skipped, tried
from specserve.measure.verify.smoke.structured import json_schema, tool_call
from specserve.measure.verify.smoke.text import logprobs, several, stop_string

_FEW_TOKENS = 1000


def tests(
    session: Session, *, tie_tolerance: float, has_time: Callable[[], bool] = lambda: True
) -> Iterator[Callable[[], Smoke]]:
    """Each test as a function to call, which raises TrafficError if the server is gone.

    `tie_tolerance`: nats by which a greedy token may be behind the best one. Tests that would start when `has_time`
    is false are skipped.
    """
    for name, test in _tests(tie_tolerance).items():
        yield partial(_one, name, test, session, has_time)


def _tests(tie_tolerance: float) -> Mapping[str, Test]:
    return {
        "JSON schema": json_schema,
        "tool call": tool_call,
        "stop string": stop_string,
        "logprobs": partial(logprobs, tie_tolerance=tie_tolerance),
        "n > 1": several,
        "min_p": partial(min_p, tie_tolerance=tie_tolerance),
        "logit_bias": logit_bias,
    }


def _one(name: str, test: Test, session: Session, has_time: Callable[[], bool]) -> Smoke:
    if not has_time():
        return skipped(name, "no time left: more `--seconds`")
    try:
        return tried(name, test, session)
    except (LookupError, TypeError, ValueError, AttributeError):
        return not_ok(name, "the answer is not as vLLM writes it")


def drafts(speculation: Speculation, *, tokens: int) -> Smoke:
    """Whether the server did speculate meanwhile: a profile may have lost its draft on the way."""
    name = "drafts"
    if speculation.is_on is None:
        return skipped(name, "the server shows no metrics: whether it speculates is not known")
    if not speculation.is_on:
        return skipped(name, "the server does not speculate: its own sampling was verified")
    found = speculation.acceptance
    if found is None or not found.drafts:
        if tokens < _FEW_TOKENS:
            return skipped(name, f"no draft within {tokens} tokens: too few to tell")
        return not_ok(name, f"the server speculates, and proposed nothing within {tokens} tokens")
    return ok(name, f"{found.drafts} drafts, acceptance {found.acceptance_rate or 0.0:.2f}")
