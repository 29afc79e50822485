"""Small requests for what speculation breaks in practice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.verify.judge import TIE_TOLERANCE
from specserve.measure.verify.result import Outcome, Smoke
from specserve.measure.verify.session import VerifySession, read_text
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import Acceptance
from specserve.serve.requests import RequestRefused, shown

Found = tuple[Outcome, str]
SmokeTest = Callable[[VerifySession], Found]
OK: Outcome = "ok"
NOT_OK: Outcome = "not ok"
SKIPPED: Outcome = "skipped"
_TEXT_TOKENS, _SCHEMA_TOKENS = 40, 96
_STORY = Prompt(
    "smoke",
    _TEXT_TOKENS,
    """def count_words(text):
    # say how often each word of a text comes
    words = text.split()
""",
)
_CITY = Prompt(
    "smoke",
    _SCHEMA_TOKENS,
    """Write one more line of the same kind.
{"city": "Lima"}
{"city": "Oslo"}
{"city": "Lima"}
""",
)
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_SCHEMA = {
    **{"type": "object", "required": ["city"], "additionalProperties": False},
    "properties": {"city": {"enum": ["Lima", "Oslo"]}},
}
_FITTING = ('{"city":"Lima"}', '{"city":"Oslo"}')
"""Every answer that the schema allows, without blanks."""


def smoke_test(name: str, session: VerifySession) -> Smoke:
    """Run one test; a server that fails at it is its result. Raises TrafficError if it is gone."""
    try:
        return Smoke(name, *TESTS[name](session))
    except RequestRefused as error:
        return Smoke(name, SKIPPED, f"refused: {error.message.partition(': ')[2] or error.message}")
    except TrafficError as error:
        session.client.models()
        return Smoke(name, NOT_OK, error.message)
    except (LookupError, TypeError, ValueError, AttributeError):
        return Smoke(name, NOT_OK, "the answer is not as vLLM writes it")


def json_schema(session: VerifySession) -> Found:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": _SCHEMA}}
    given = read_text(session.ask(_CITY, max_tokens=_SCHEMA_TOKENS, response_format=form))
    begun = "".join(given.text.split())  # blanks may stand anywhere
    if begun in _FITTING:
        return OK, shown(given.text)
    if given.finish_reason == "length" and any(each.startswith(begun) for each in _FITTING):
        return SKIPPED, f"not finished within {_SCHEMA_TOKENS} tokens: {shown(begun[:40])}"
    return NOT_OK, f"not JSON of the schema: {shown(given.text[:80])}"


def stop_string(session: VerifySession) -> Found:
    """A stop string from the middle of a greedy text must end it right there."""
    full = read_text(session.ask(_STORY, max_tokens=_TEXT_TOKENS))
    starts = range(len(full.text) // 4, len(full.text) - 3)
    parts = ((start, full.text[start : start + 3]) for start in starts)
    # three characters that come for the first time there
    is_first = (
        part for at, part in parts if len(part.strip()) == 3 and full.text.index(part) == at
    )
    stop = next(is_first, None)
    if stop is None:
        return SKIPPED, "the text is too short or too repetitive for this test"
    cut = read_text(session.ask(_STORY, max_tokens=_TEXT_TOKENS, stop=[stop]))
    if cut.text == full.text[: full.text.index(stop)] and cut.finish_reason == "stop":
        return OK, f"with the stop string {shown(repr(stop))}, the answer ends right before it"
    if stop in cut.text:
        return NOT_OK, f"the text goes on after {shown(repr(stop))}"
    # a text that differs from the first one may end anywhere
    if any(mine != theirs for mine, theirs in zip(cut.ids, full.ids, strict=False)):
        return SKIPPED, "the greedy text differed the second time: a near-tie"
    return NOT_OK, f"cut elsewhere than before {shown(repr(stop))}: {shown(repr(cut.text[-30:]))}"


def logprobs(session: VerifySession) -> Found:
    """The log-probabilities that come with the tokens are those of the target."""
    is_chat = session.mode == "chat"
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if is_chat else {"logprobs": 1}
    raw = session.ask(_STORY, max_tokens=_TEXT_TOKENS, **fields)
    given, content = read_text(raw), raw["choices"][0].get("logprobs") or {}
    values = (
        [item["logprob"] for item in content["content"]] if is_chat else content["token_logprobs"]
    )
    if len(values) != len(given.ids):
        return NOT_OK, f"{len(values)} log-probabilities for {len(given.ids)} tokens"
    scores = session.score(given.prompt_ids, given.ids)
    if not scores:
        return SKIPPED, "the answer is empty"
    worst = max(
        abs(value - position.logprob) for value, position in zip(values, scores, strict=False)
    )
    detail = f"{len(values)} tokens, at most {worst:.3f} nats from a plain prefill"
    return (OK if worst <= TIE_TOLERANCE else NOT_OK), detail


TESTS: Mapping[str, SmokeTest] = {
    "JSON schema": json_schema,
    "stop string": stop_string,
    "logprobs": logprobs,
}
_FEW_TOKENS = 1000


def drafts(speculates: bool | None, gained: Acceptance | None, *, tokens: int) -> Smoke:
    """Whether the server did speculate meanwhile: a profile may have lost its draft on the way."""
    if speculates is None:
        result = SKIPPED, "the server shows no metrics: whether it speculates is not known"
    elif not speculates:
        result = SKIPPED, "the server does not speculate: its own sampling was verified"
    elif gained is not None and gained.drafts:
        result = OK, f"{gained.drafts} drafts, acceptance {gained.acceptance_rate or 0.0:.2f}"
    elif tokens < _FEW_TOKENS:
        result = SKIPPED, f"no draft within {tokens} tokens: too few to tell"
    else:
        result = NOT_OK, f"the server speculates, but proposed nothing within {tokens} tokens"
    return Smoke("drafts", *result)
