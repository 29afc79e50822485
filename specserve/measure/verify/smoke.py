"""Small requests for what speculation breaks in practice: a JSON schema and a stop string."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specserve.errors import TrafficError
from specserve.measure.verify.result import Outcome, Smoke
from specserve.measure.verify.session import VerifySession, read_text
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import since_by_engine
from specserve.metrics.prometheus import Metrics
from specserve.serve.requests import RequestRefused, shown

_FEW_TOKENS = 1000
"""A drafter like ngram may propose nothing within so many."""
_STORY = Prompt(
    "smoke",
    40,
    "def count_words(text):\n    # say how often each word of a text comes\n"
    "    words = text.split()\n",
)
_CITIES = '{"city": "Lima"}\n{"city": "Oslo"}\n{"city": "Lima"}\n'
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_CITY = Prompt("smoke", 96, text=f"Write one more line of the same kind.\n{_CITIES}")
_SCHEMA = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
    "properties": {"city": {"enum": ["Lima", "Oslo"]}},
}


Found = tuple[Outcome, str]


def json_schema(session: VerifySession) -> Found:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
    given = read_text(session.ask(_CITY, max_tokens=_CITY.max_tokens, response_format=form))
    text, fitting = "".join(given.text.split()), ('{"city":"Lima"}', '{"city":"Oslo"}')
    if text in fitting:  # blanks may stand anywhere
        return "ok", shown(given.text)
    if given.finish_reason == "length" and any(each.startswith(text) for each in fitting):
        return "skipped", f"not finished within {_CITY.max_tokens} tokens"
    return "not ok", f"not JSON of the schema: {shown(given.text[:80])}"


def stop_string(session: VerifySession) -> Found:
    """A stop string from the middle of a greedy text must end it right there."""
    full = read_text(session.ask(_STORY, max_tokens=_STORY.max_tokens))
    for start in range(len(full.text) // 4, len(full.text) - 3):
        stop = full.text[start : start + 3]
        if len(stop.strip()) == 3 and full.text.index(stop) == start:
            break  # it comes for the first time there
    else:
        return "skipped", "the text is too short or too repetitive for this test"
    cut = read_text(session.ask(_STORY, max_tokens=_STORY.max_tokens, stop=[stop]))
    if cut.text == full.text[:start] and cut.finish_reason == "stop":
        return "ok", f"with the stop string {shown(repr(stop))}, the answer ends right before it"
    if stop not in cut.text and cut.ids != full.ids[: len(cut.ids)]:
        return "skipped", "the greedy text differed the second time: a near-tie"
    return "not ok", f"the stop string {shown(repr(stop))} gives {shown(repr(cut.text[-30:]))}"


TESTS: Mapping[str, Callable[[VerifySession], Found]] = {
    "JSON schema": json_schema,
    "stop string": stop_string,
}


def smoke_test(name: str, session: VerifySession) -> Smoke:
    """Run one test; a server that fails at it is its result. Raises TrafficError if it is gone."""
    try:
        return Smoke(name, *TESTS[name](session))
    except RequestRefused as error:
        return Smoke(name, "skipped", f"refused: {error.message}")
    except TrafficError as error:
        session.client.models()
        return Smoke(name, "not ok", error.message)


def drafts(before: Metrics | None, after: Metrics | None, *, tokens: int) -> Smoke:
    """Whether the server did speculate meanwhile: a profile may have lost its draft on the way."""
    if before is None or after is None:
        return Smoke("drafts", "skipped", "the server shows no metrics")
    if not after.speculates:
        return Smoke("drafts", "skipped", "the server does not speculate")
    gained = since_by_engine(before.acceptance, now=after.acceptance)
    if gained is not None and gained.drafts:
        rate = gained.acceptance_rate or 0.0
        return Smoke("drafts", "ok", f"{gained.drafts} drafts, acceptance {rate:.2f}")
    outcome: Outcome = "skipped" if tokens < _FEW_TOKENS else "not ok"
    return Smoke("drafts", outcome, f"no draft within {tokens} tokens")
