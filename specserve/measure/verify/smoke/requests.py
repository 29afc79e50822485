"""The requests that every smoke test may send, and how their answers are judged. Knows no test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.verify.prompts import Prompt
from specserve.measure.verify.result import Outcome, Sampling, Smoke
from specserve.measure.verify.session import Session, sampling_body
from specserve.serve.failures import Refused, shown

Test = Callable[[Session], Smoke]
GREEDY = sampling_body(Sampling(0.0))
STORY = Prompt(
    "smoke",
    "def count_words(text):\n    # say how often each word of a text comes\n    words = text.split()\n",
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "city": {"enum": ["Lima", "Oslo"]},
    },
    "required": ["days", "city"],
    "additionalProperties": False,
}
MAX_TOKENS = 96


def ok(name: str, detail: str) -> Smoke:
    """It works."""
    return Smoke(name, Outcome.OK, detail)


def not_ok(name: str, detail: str) -> Smoke:
    """It does not."""
    return Smoke(name, Outcome.NOT_OK, detail)


def skipped(name: str, detail: str) -> Smoke:
    """It could not be tried."""
    return Smoke(name, Outcome.SKIPPED, detail)


def tried(name: str, test: Test, session: Session) -> Smoke:
    """Run one test; a server that fails at it is its result, a server that is gone is not."""
    try:
        return test(session)
    except Refused as error:
        return skipped(name, f"refused: {error.message.partition(': ')[2] or error.message}")
    except TrafficError as error:
        session.client.models()  # raises where nobody is there any more
        return not_ok(name, error.message)


def fits_schema(text: str) -> bool:
    """Whether this is JSON that follows SCHEMA."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(content, dict)
        and set(content) == {"days", "city"}
        and content["city"] in ("Lima", "Oslo")
        and type(content["days"]) is int
        and 0 <= content["days"] <= 9
    )


def _may_become(text: str) -> bool:
    """Whether JSON of SCHEMA may begin like this; blanks may stand anywhere."""
    days = [f'"days":{number}' for number in range(10)]
    cities = [f'"city":"{name}"' for name in ("Lima", "Oslo")]
    pairs = [(one, other) for one in days for other in cities]
    wholes = [f"{{{one},{other}}}" for pair in pairs for one, other in (pair, pair[::-1])]
    return any(whole.startswith("".join(text.split())) for whole in wholes)


def schema_result(name: str, text: str, finish_reason: object) -> Smoke:
    """The judgement on a text that was to follow SCHEMA."""
    if fits_schema(text):
        return ok(name, shown(text))
    if finish_reason == "length" and _may_become(text):
        return skipped(name, f"not finished within {MAX_TOKENS} tokens: {shown(text[:40])}")
    return not_ok(name, f"not JSON of the schema: {shown(text[:80])}")
