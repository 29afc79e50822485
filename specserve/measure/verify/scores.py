"""What a plain prefill tells of a server's own text: each token's log-probability, and those of the likeliest ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.verify.result import Sampling

MOST_VOCABULARY = 1 << 18
"""More tokens than any vocabulary has: bounds what is beyond the known ones at temperatures above 1."""
_ROUNDING = 1e-5
"""Of the sum of twenty probabilities that came as float32 logarithms."""
_LOGITS = 1.01
"""A sum above it is none of probabilities: the server shows logits (vLLM's `logprobs_mode`)."""
NOISE = 0.01
"""A share this close to `top_p` may fall on either side: decode and prefill round differently."""
LEVELS = (0.0, -12.0, -18.0, -25.0)
"""Log-probabilities (nats, at temperature 1); a token that is not known is below the first in any case."""
NEAR = 0.25
"""Two scores this close (nats) may change places, for the same reason."""


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
        """How much likelier the best token is; 0 if this is it."""
        return max(0.0, self.top[0][1] - self.logprob)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What a server wrote after a prompt, in token ids, with its score once it has one."""

    prompt: str
    """The prompt's name."""
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] = ()
    """Of the first tokens of `ids`: those that fit into a prompt again."""


def positions(steps: Any, ids: Sequence[int], *, count: int) -> tuple[Position, ...]:
    """Read the last `len(ids)` entries of `prompt_logprobs`, requested with `count` tokens each.

    An entry maps token ids to `{logprob, rank, decoded_token}`: the token that stands there, and the `count`
    likeliest (vllm 0.32, v1/engine/logprobs.py, `_update_prompt_logprobs`). Raises TrafficError for anything else.
    """
    try:
        own = steps[len(steps) - len(ids) :] if ids else []
        return tuple(_position(step, token, count) for step, token in zip(own, ids, strict=True))
    except (TypeError, ValueError, LookupError, AttributeError):
        raise TrafficError("the server's `prompt_logprobs` are not as vLLM writes them") from None


def _position(step: Any, token: int, count: int) -> Position:
    entries = {int(key): entry for key, entry in step.items()}
    logprobs = {key: float(entry["logprob"]) for key, entry in entries.items()}
    if any(map(math.isnan, logprobs.values())):
        raise ValueError
    mine = entries[token]
    rank = mine.get("rank")  # the emitted token is listed too if it is not among the `count` likeliest
    is_top = int(rank) <= count if rank is not None else len(entries) <= count
    top = sorted((item for item in logprobs.items() if is_top or item[0] != token), key=lambda item: -item[1])
    best = entries[top[0][0]]
    return Position(
        token=token,
        logprob=logprobs[token],
        top=tuple(top),
        text=str(mine.get("decoded_token") or ""),
        best_text=str(best.get("decoded_token") or ""),
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens with their log-weights at the temperature and their probabilities, given that it is one of them."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Log-probabilities over temperature."""
    probabilities: tuple[float, ...]
    beyond: tuple[float, ...] | None
    """For each of LEVELS: the most that all other tokens below it can have together; None: nothing can be said."""


def known(position: Position, sampling: Sampling) -> Distribution | None:
    """What is known of the distribution that this token was drawn from; None if the settings hide it.

    The order is vLLM's: temperature, top-k, top-p (vllm 0.32, v1/sample/rejection_sampler.py,
    `apply_sampling_constraints`).
    """
    scores = [logprob / sampling.temperature for _, logprob in position.top]
    weights = [math.exp(score - scores[0]) for score in scores]
    beyond = _beyond(position, sampling.temperature)
    if sampling.top_k:
        edge = _edge(scores, weights, sampling.top_k)
        if edge is None:
            return None
        weights, beyond = weights[: sampling.top_k], (edge,) * len(LEVELS)
    if sampling.top_p < 1.0:
        kept = _nucleus(weights, None if beyond is None else beyond[0], sampling.top_p)
        if kept is None:
            return None
        if kept < len(weights):
            weights, beyond = weights[:kept], (0.0,) * len(LEVELS)
    total = math.fsum(weights)
    return Distribution(
        tokens=tuple(token for token, _ in position.top[: len(weights)]),
        scores=tuple(scores[: len(weights)]),
        probabilities=tuple(weight / total for weight in weights),
        beyond=None if beyond is None else tuple(weight / (total + weight) for weight in beyond),
    )


def _edge(scores: list[float], weights: list[float], top_k: int) -> float | None:
    """The weight that may stand beyond the `top_k` best; None if it is not clear which those are.

    They are clear if the last of them is well above all that follow, shown or not, or weighs next to nothing.
    """
    if top_k > len(scores):
        return None
    following = scores[min(top_k, len(scores) - 1)]
    if scores[top_k - 1] - following > NEAR:
        return 0.0
    last = weights[top_k - 1]
    return last if last < NOISE * math.fsum(weights[:top_k]) else None


def _beyond(position: Position, temperature: float) -> tuple[float, ...] | None:
    """At most this is the weight of all other tokens below each level together, if the best one's is 1.

    A token of probability p weighs p^s, with s = 1/T. For s >= 1 that is at most p * most^(s - 1) if none of them
    is likelier than `most`; for s < 1 the sum of N terms is at most N^(1 - s) * sum^s (Jensen).
    """
    seen = math.fsum(math.exp(logprob) for _, logprob in position.top)
    if seen > _LOGITS:
        return None
    rest = math.log(max(0.0, 1.0 - seen) + _ROUNDING)
    exponent, all_ = 1 / temperature, math.log(MOST_VOCABULARY)
    bounds = []
    for level in LEVELS:
        most = min(position.top[-1][1], level)
        total = min(rest, all_ + most)
        bound = total + most * (exponent - 1) if exponent >= 1 else all_ * (1 - exponent) + total * exponent
        bounds.append(math.exp(min(bound - position.top[0][1] * exponent, 50.0)))
    return tuple(bounds)


def _nucleus(weights: list[float], beyond: float | None, top_p: float) -> int | None:
    """How many tokens top-p keeps: those before which less than `top_p` stands; None if that is not clear."""
    total, above = math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        surely_above = above / (total + beyond) if beyond is not None else 0.0
        if surely_above >= top_p + NOISE:
            return index
        if above / total > top_p - NOISE and index:
            return None
        above += weight
    return len(weights)
