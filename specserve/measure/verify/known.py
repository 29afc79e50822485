"""The target's distribution at one position, as far as its likeliest tokens tell it exactly. Pure.

Conditional on being one of the known tokens the distribution is exact at any temperature, since what is not known
cancels. Knows nothing of statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specserve.measure.verify.result import Sampling
from specserve.measure.verify.scored import Position

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
class Known:
    """Tokens with their log-weights at the temperature and their probabilities, given that it is one of them."""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    """Log-probabilities over temperature, penalties included."""
    probabilities: tuple[float, ...]
    beyond: tuple[float, ...] | None
    """For each of LEVELS: the share of all other tokens below it is no more than this; None: nothing can be said."""


def known(position: Position, sampling: Sampling, counts: Mapping[int, int]) -> Known | None:
    """What is known of the distribution that this token was drawn from; None where the settings hide it.

    `counts`: how often each token stands in the answer so far. The order is vLLM's: penalties, temperature, top-k,
    top-p (vllm 0.32, v1/sample/rejection_sampler.py, `apply_sampling_constraints`).
    """
    scored = [(token, (logprob - _penalty(sampling, counts.get(token, 0))) / sampling.temperature)
              for token, logprob in position.top]  # fmt: skip
    scored.sort(key=lambda item: -item[1])
    ceiling = (position.top[-1][1] + _bonus(sampling, counts)) / sampling.temperature
    beyond = _beyond(position, sampling, counts, best=scored[0][1])
    weights = [math.exp(score - scored[0][1]) for _, score in scored]
    if sampling.top_k:
        edge = _edge(scored, weights, top_k=sampling.top_k, ceiling=ceiling)
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
    return Known(
        tokens=tuple(token for token, _ in scored[: len(weights)]),
        scores=tuple(score for _, score in scored[: len(weights)]),
        probabilities=tuple(weight / total for weight in weights),
        beyond=None if beyond is None else tuple(weight / (total + weight) for weight in beyond),
    )


def _penalty(sampling: Sampling, count: int) -> float:
    return sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count


def _bonus(sampling: Sampling, counts: Mapping[int, int]) -> float:
    """By how much a token that is not known may have been raised."""
    most = max(counts.values(), default=0)
    return max(0.0, -sampling.presence_penalty) + max(0.0, -sampling.frequency_penalty) * most


def _edge(
    scored: list[tuple[int, float]], weights: list[float], *, top_k: int, ceiling: float
) -> float | None:
    """The weight that may stand beyond the `top_k` best; None where it is not clear which those are.

    They are clear where the last of them is well above all that follow, shown or not, or weighs next to nothing.
    """
    if top_k > len(scored) or scored[top_k - 1][1] < ceiling:
        return None
    following = max([ceiling, *(score for _, score in scored[top_k : top_k + 1])])
    if scored[top_k - 1][1] - following > NEAR:
        return 0.0
    last = weights[top_k - 1]
    return last if last < NOISE * math.fsum(weights[:top_k]) else None


def _beyond(
    position: Position, sampling: Sampling, counts: Mapping[int, int], *, best: float
) -> tuple[float, ...] | None:
    """At most this is the weight of all other tokens below each level together, where the best one's is 1.

    A token of probability p weighs p^s, with s = 1/T. For s >= 1 that is at most p * most^(s - 1), where none of them
    is likelier than `most`; for s < 1 the sum of N terms is at most N^(1 - s) * sum^s (Jensen).
    """
    seen = math.fsum(math.exp(logprob) for _, logprob in position.top)
    if seen > _LOGITS:
        return None
    rest = math.log(max(0.0, 1.0 - seen) + _ROUNDING)
    exponent, all_ = 1 / sampling.temperature, math.log(MOST_VOCABULARY)
    raised = _bonus(sampling, counts) * exponent - best
    bounds = []
    for level in LEVELS:
        most = min(position.top[-1][1], level)
        total = min(rest, all_ + most)
        bound = total + most * (exponent - 1) if exponent >= 1 else all_ * (1 - exponent) + total * exponent
        bounds.append(math.exp(min(bound + raised, 50.0)))
    return tuple(bounds)


def _nucleus(weights: list[float], beyond: float | None, top_p: float) -> int | None:
    """How many of the tokens top-p keeps: those before which less than `top_p` stands; None where that is not clear."""
    total, above = math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        surely_above = above / (total + beyond) if beyond is not None else 0.0
        if surely_above >= top_p + NOISE:
            return index
        if above / total > top_p - NOISE and index:
            return None
        above += weight
    return len(weights)
