"""Small requests for what speculation breaks in practice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specserve.errors import TrafficError
from specserve.measure.verify.result import Outcome, Smoke
from specserve.measure.verify.session import VerifySession, read_text
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import Acceptance
from specserve.serve.requests import RequestRefused, shown

Found = tuple[Outcome, str]
_TEXT_TOKENS, _SCHEMA_TOKENS = 40, 96
_FEW_TOKENS = 1000
"""A drafter like ngram may propose nothing within so many."""
_STORY = """def count_words(text):
    # say how often each word of a text comes
    words = text.split()
"""
_CITY = """Write one more line of the same kind.
{"city": "Lima"}
{"city": "Oslo"}
{"city": "Lima"}
"""
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_SCHEMA = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
    "properties": {"city": {"enum": ["Lima", "Oslo"]}},
}
_FITTING = ('{"city":"Lima"}', '{"city":"Oslo"}')
"""Every answer that the schema allows, without blanks."""


def smoke_test(name: str, session: VerifySession) -> Smoke:
    """Run one test; a server that fails at it is its result. Raises TrafficError if it is gone."""
    try:
        return Smoke(name, *TESTS[name](session))
    except RequestRefused as error:
        return Smoke(name, "skipped", f"refused: {error.message}")
    except TrafficError as error:
        session.client.models()
        return Smoke(name, "not ok", error.message)
    except (LookupError, TypeError, ValueError, AttributeError):
        return Smoke(name, "not ok", "the answer is not as vLLM writes it")


def json_schema(session: VerifySession) -> Found:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
    prompt = Prompt("smoke", _SCHEMA_TOKENS, _CITY)
    given = read_text(session.ask(prompt, max_tokens=_SCHEMA_TOKENS, response_format=form))
    begun = "".join(given.text.split())  # blanks may stand anywhere
    if begun in _FITTING:
        return "ok", shown(given.text)
    if given.finish_reason == "length" and any(each.startswith(begun) for each in _FITTING):
        return "skipped", f"not finished within {_SCHEMA_TOKENS} tokens: {shown(begun[:40])}"
    return "not ok", f"not JSON of the schema: {shown(given.text[:80])}"


def stop_string(session: VerifySession) -> Found:
    """A stop string from the middle of a greedy text must end it right there."""
    prompt = Prompt("smoke", _TEXT_TOKENS, _STORY)
    full = read_text(session.ask(prompt, max_tokens=_TEXT_TOKENS))
    stop = None
    for start in range(len(full.text) // 4, len(full.text) - 3):
        part = full.text[start : start + 3]
        if len(part.strip()) == 3 and full.text.index(part) == start:
            stop = part  # it comes for the first time there
            break
    if stop is None:
        return "skipped", "the text is too short or too repetitive for this test"
    cut = read_text(session.ask(prompt, max_tokens=_TEXT_TOKENS, stop=[stop]))
    if cut.text == full.text[: full.text.index(stop)] and cut.finish_reason == "stop":
        return "ok", f"with the stop string {shown(repr(stop))}, the answer ends right before it"
    if stop in cut.text:
        return "not ok", f"the text goes on after {shown(repr(stop))}"
    # a text that differs from the first one may end anywhere
    if any(mine != theirs for mine, theirs in zip(cut.ids, full.ids, strict=False)):
        return "skipped", "the greedy text differed the second time: a near-tie"
    place = f"before {shown(repr(stop))}: {shown(repr(cut.text[-30:]))}"
    return "not ok", f"cut elsewhere than {place}"


TESTS: Mapping[str, Callable[[VerifySession], Found]] = {
    "JSON schema": json_schema,
    "stop string": stop_string,
}


def drafts(speculates: bool | None, gained: Acceptance | None, *, tokens: int) -> Smoke:
    """Whether the server did speculate meanwhile: a profile may have lost its draft on the way."""
    if speculates is None:
        return Smoke("drafts", "skipped", "the server shows no metrics")
    if not speculates:
        return Smoke("drafts", "skipped", "the server does not speculate")
    if gained is not None and gained.drafts:
        rate = gained.acceptance_rate or 0.0
        return Smoke("drafts", "ok", f"{gained.drafts} drafts, acceptance {rate:.2f}")
    outcome: Outcome = "skipped" if tokens < _FEW_TOKENS else "not ok"
    return Smoke("drafts", outcome, f"no draft within {tokens} tokens")
