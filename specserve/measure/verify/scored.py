"""Tokens with the log-probabilities of a plain prefill, as vLLM's `prompt_logprobs` tell them. Asks no server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specserve.errors import TrafficError


@dataclass(frozen=True, slots=True)
class Position:
    """One emitted token and what the target thought of it: nats, at temperature 1."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with their log-probabilities, best first; the emitted one may not be among them."""
    text: str = ""
    best_text: str = ""

    @property
    def gap(self) -> float:
        """How much likelier the best token is; 0 where this is it."""
        return max(0.0, self.top[0][1] - self.logprob)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server wrote after a prompt, in token ids, with its score once it has one."""

    prompt: str
    """The prompt's name."""
    temperature: float
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] = ()
    """Of the first tokens of `ids`: those that fit into a prompt again."""


def positions(steps: Any, ids: Sequence[int], *, count: int) -> tuple[Position, ...]:
    """Read the last `len(ids)` entries of `prompt_logprobs`, asked for with `count` tokens each.

    An entry maps token ids to `{logprob, rank, decoded_token}`: the token that stands there, and the `count`
    likeliest (vllm 0.32, v1/engine/logprobs.py, `_update_prompt_logprobs`). Raises TrafficError for what is not so.
    """
    try:
        own = steps[len(steps) - len(ids) :] if ids else []
        return tuple(_position(step, token, count) for step, token in zip(own, ids, strict=True))
    except (TypeError, ValueError, LookupError, AttributeError):
        raise TrafficError("the server's `prompt_logprobs` are not as vLLM writes them") from None


def _position(step: Any, token: int, count: int) -> Position:
    found = {int(key): entry for key, entry in step.items()}
    mine = found[token]
    top = [
        (key, _number(entry))
        for key, entry in found.items()
        if _is_top(entry, len(found), count, key == token)
    ]
    top.sort(key=lambda item: -item[1])
    if not top:
        raise ValueError
    return Position(
        token=token,
        logprob=_number(mine),
        top=tuple(top),
        text=str(mine.get("decoded_token") or ""),
        best_text=str(found[top[0][0]].get("decoded_token") or ""),
    )


def _is_top(entry: Any, entries: int, count: int, is_own: bool) -> bool:
    """Whether it is one of the `count` likeliest; the emitted token is told too where it is not."""
    if not is_own:
        return True
    rank = entry.get("rank")
    return int(rank) <= count if rank is not None else entries <= count


def _number(entry: Any) -> float:
    value = float(entry["logprob"])
    if math.isnan(value):
        raise ValueError
    return value
