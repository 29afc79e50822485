"""Settings that vLLM refuses with speculation: they may be refused or obeyed, not passed over."""

from __future__ import annotations

from specserve.measure.verify.result import Smoke
from specserve.measure.verify.session import Session, answer
from specserve.measure.verify.smoke.requests import GREEDY, STORY, not_ok, ok
from specserve.serve.failures import Refused

_TOKENS = 16
_REFUSED = "refused, as vLLM does with speculation"


def min_p(session: Session, *, tie_tolerance: float) -> Smoke:
    """`min_p = 1` leaves the best token alone, at any temperature."""
    try:
        raw = session.ask(STORY, {**GREEDY, "temperature": 1.5, "min_p": 1.0, "max_tokens": _TOKENS})
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
        raw = session.ask(STORY, {**GREEDY, "max_tokens": _TOKENS, "logit_bias": {str(first): 100}})
    except Refused:
        return ok("logit_bias", _REFUSED)
    if set(answer(raw, "", 0.0).ids) == {first}:
        return ok("logit_bias", "obeyed")
    return not_ok("logit_bias", "the server takes logit_bias and does not obey it")
