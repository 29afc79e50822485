"""Small requests for what speculation breaks in practice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.verify.greedy import TIE_TOLERANCE
from specserve.measure.verify.prompts import Prompt
from specserve.measure.verify.result import Outcome, Sampling, Smoke, Speculation
from specserve.measure.verify.session import Session, answer, sampling_body
from specserve.serve.requests import Refused, shown

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


NAME = "long context"
_ROOM = 32
_PROBES = 4


def place(max_model_len: int | None, draft_limit: int | None) -> int | None:
    """The length that the text is to cross: the draft's, if that is known and below the server's."""
    limits = [limit for limit in (max_model_len, draft_limit) if limit is not None and limit > 4 * _ROOM]
    return min(limits, default=None)


def long_context(session: Session, ids: Sequence[int], limit: int, *, tie_tolerance: float) -> Smoke:
    """Greedy text around `limit`, made of a repeated text; some of its tokens are asked for again by prefill alone."""
    room = _ROOM if limit == session.max_model_len else 2 * _ROOM
    prompt = (list(ids) * (limit // len(ids) + 1))[: limit - _ROOM]
    given = session.go_on(prompt, max_tokens=room)
    if not given.ids or given.finish_reason not in ("length", "stop"):
        return not_ok(NAME, f"no text at {limit} tokens")
    step = max(1, len(given.ids) // _PROBES)
    worst = 0.0
    for index in range(len(given.ids) - 1, -1, -step):
        top = session.next_tokens([*prompt, *given.ids[:index]])
        best = max(top.values())
        worst = max(worst, best - top.get(given.ids[index], min(top.values()) - 1.0))
    where = f"{len(prompt)} to {len(prompt) + len(given.ids)} tokens"
    if worst > tie_tolerance:
        return not_ok(NAME, f"{where}: a token that a prefill does not choose (gap {worst:.2f})")
    return ok(NAME, f"{where}, as a prefill has it")


_REFUSED_TOKENS = 16
_REFUSED = "refused, as vLLM does with speculation"


def min_p(session: Session, *, tie_tolerance: float) -> Smoke:
    """`min_p = 1` leaves the best token alone, at any temperature."""
    try:
        raw = session.ask(STORY, {**GREEDY, "temperature": 1.5, "min_p": 1.0, "max_tokens": _REFUSED_TOKENS})
    except Refused:
        return ok("min_p", _REFUSED)
    given = answer(raw, "", 1.5)
    gaps = [position.gap for position in session.score(given.prompt_ids, given.ids)]
    if max(gaps, default=0.0) <= tie_tolerance:
        return ok("min_p", "obeyed")
    return not_ok("min_p", "the server takes min_p and does not obey it")


def logit_bias(session: Session) -> Smoke:
    """A bias of 100 on one token lets no other come."""
    first = answer(session.ask(STORY, {**GREEDY, "max_tokens": 4}), "", 0.0).ids[0]
    try:
        raw = session.ask(STORY, {**GREEDY, "max_tokens": _REFUSED_TOKENS, "logit_bias": {str(first): 100}})
    except Refused:
        return ok("logit_bias", _REFUSED)
    if set(answer(raw, "", 0.0).ids) == {first}:
        return ok("logit_bias", "obeyed")
    return not_ok("logit_bias", "the server takes logit_bias and does not obey it")


_WEATHER = Prompt(
    "smoke",
    """Write one more line of the same kind.
{"days": 2, "city": "Lima"}
{"days": 5, "city": "Oslo"}
{"days": 7, "city": "Lima"}
{"days": 3, "city": "Oslo"}
""",
)
"""Examples, so that a small model too comes to an end: blanks without end are legal JSON."""
_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city", "parameters": SCHEMA},
}


def json_schema(session: Session) -> Smoke:
    """`response_format` with a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    raw = session.ask(_WEATHER, {**GREEDY, "max_tokens": MAX_TOKENS, "response_format": form})
    choice = raw["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"].get("content")
    return schema_result("JSON schema", str(text or ""), choice.get("finish_reason"))


def tool_call(session: Session) -> Smoke:
    """A named tool: its arguments must follow the schema of its parameters."""
    name = "tool call"
    if session.mode != "chat":
        return skipped(name, "the model has no chat template")
    choose = {"type": "function", "function": {"name": "get_weather"}}
    raw = session.ask(_WEATHER, {**GREEDY, "max_tokens": MAX_TOKENS, "tools": [_TOOL], "tool_choice": choose})
    choice = raw["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    if not calls:
        return not_ok(name, "the answer holds no call")
    if calls[0]["function"]["name"] != "get_weather":
        return not_ok(name, "the answer calls another tool")
    return schema_result(name, str(calls[0]["function"]["arguments"]), choice.get("finish_reason"))


_TEXT_TOKENS = 40


def stop_string(session: Session) -> Smoke:
    """A stop string from the middle of a greedy text must end it right there."""
    name = "stop string"
    whole = answer(session.ask(STORY, {**GREEDY, "max_tokens": _TEXT_TOKENS}), "", 0.0)
    stop = _middle(whole.text)
    if stop is None:
        return skipped(name, "the text is too short or too even to cut")
    cut = answer(session.ask(STORY, {**GREEDY, "max_tokens": _TEXT_TOKENS, "stop": [stop]}), "", 0.0)
    if cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason == "stop":
        return ok(name, f"cut before {shown(repr(stop))}")
    if stop in cut.text:
        return not_ok(name, f"the text goes on after {shown(repr(stop))}")
    # a text that parts from the first one may end anywhere, and need not come to the stop string at all
    if any(mine != theirs for mine, theirs in zip(cut.ids, whole.ids, strict=False)):
        return skipped(name, "the greedy text was another one the second time: a near-tie")
    return not_ok(name, f"cut elsewhere than before {shown(repr(stop))}: {shown(repr(cut.text[-30:]))}")


def _middle(text: str) -> str | None:
    """Three characters from inside that come for the first time there."""
    for start in range(len(text) // 4, len(text) - 3):
        part = text[start : start + 3]
        if len(part.strip()) == 3 and text.index(part) == start:
            return part
    return None


def logprobs(session: Session, *, tie_tolerance: float) -> Smoke:
    """The log-probabilities that come with the tokens are those of the target."""
    name = "logprobs"
    is_chat = session.mode == "chat"
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 1} if is_chat else {"logprobs": 1}
    raw = session.ask(STORY, {**GREEDY, "max_tokens": _TEXT_TOKENS, **asked})
    given, told = answer(raw, "", 0.0), raw["choices"][0].get("logprobs") or {}
    values = [item["logprob"] for item in told["content"]] if is_chat else told["token_logprobs"]
    if len(values) != len(given.ids):
        return not_ok(name, f"{len(values)} log-probabilities for {len(given.ids)} tokens")
    positions = session.score(given.prompt_ids, given.ids)
    if not positions:
        return skipped(name, "the answer is empty")
    worst = max(abs(value - position.logprob) for value, position in zip(values, positions, strict=False))
    detail = f"{len(values)} tokens, at most {worst:.3f} nats from a plain prefill"
    # rounding alone moves a figure by about as much: a smaller tolerance is asked of tokens, not of these
    return ok(name, detail) if worst <= max(TIE_TOLERANCE, tie_tolerance) else not_ok(name, detail)


def several(session: Session) -> Smoke:
    """`n = 3`."""
    name = "n > 1"
    raw = session.ask(STORY, {**GREEDY, "temperature": 1.0, "max_tokens": _TEXT_TOKENS, "n": 3})
    choices = raw["choices"]
    if len(choices) != 3 or sorted(choice["index"] for choice in choices) != [0, 1, 2]:
        return not_ok(name, f"{len(choices)} answers for n = 3")
    answers = [answer(raw, "", 1.0, index=index) for index in range(3)]
    if not all(one.ids and one.finish_reason for one in answers):
        return not_ok(name, "an answer is empty or has no end")
    distinct = len({one.ids for one in answers})
    return ok(name, f"3 answers, {distinct} of them different")


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
