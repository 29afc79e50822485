"""A text that crosses the length up to which the draft can follow, or that fills the context. Near there drafts end."""

from __future__ import annotations

from collections.abc import Sequence

from specserve.measure.verify.result import Smoke
from specserve.measure.verify.session import Session
from specserve.measure.verify.smoke.requests import not_ok, ok

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
