"""Where an answer ends, its log-probabilities, several answers at once: a step emits several tokens there."""

from __future__ import annotations

from typing import Any

from specserve.measure.verify.greedy import TIE_TOLERANCE
from specserve.measure.verify.result import Smoke
from specserve.measure.verify.session import Session, answer
from specserve.measure.verify.smoke.requests import GREEDY, STORY, not_ok, ok, skipped
from specserve.serve.failures import shown

_TOKENS = 40


def stop_string(session: Session) -> Smoke:
    """A stop string from the middle of a greedy text must end it right there."""
    name = "stop string"
    whole = answer(session.ask(STORY, {**GREEDY, "max_tokens": _TOKENS}), "", 0.0)
    stop = _middle(whole.text)
    if stop is None:
        return skipped(name, "the text is too short or too even to cut")
    cut = answer(session.ask(STORY, {**GREEDY, "max_tokens": _TOKENS, "stop": [stop]}), "", 0.0)
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
    raw = session.ask(STORY, {**GREEDY, "max_tokens": _TOKENS, **asked})
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
    raw = session.ask(STORY, {**GREEDY, "temperature": 1.0, "max_tokens": _TOKENS, "n": 3})
    choices = raw["choices"]
    if len(choices) != 3 or sorted(choice["index"] for choice in choices) != [0, 1, 2]:
        return not_ok(name, f"{len(choices)} answers for n = 3")
    answers = [answer(raw, "", 1.0, index=index) for index in range(3)]
    if not all(one.ids and one.finish_reason for one in answers):
        return not_ok(name, "an answer is empty or has no end")
    distinct = len({one.ids for one in answers})
    return ok(name, f"3 answers, {distinct} of them different")
