"""Whether greedy tokens are the target's best ones, by the log-probabilities of a plain prefill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.verify.result import CONFIDENCE, Difference, Greedy, Sampling, Verdict


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


TIE_TOLERANCE = 0.25
"""Nats; two steps of bf16 between 16 and 32, where the best logits of large models lie."""
MARGIN = 0.015
"""The share of wrong tokens that must be excluded for LOSSLESS."""
_BEFORE = 6


@dataclass(frozen=True, slots=True)
class Suspect:
    """An answer, and the index of a token in it that the target would not have chosen."""

    answer: Answer
    index: int


def suspects(answer: Answer, *, tie_tolerance: float) -> list[Suspect]:
    """The tokens that are behind the best one by more than a tie."""
    return [
        Suspect(answer, index)
        for index, position in enumerate(answer.positions)
        if position.gap > tie_tolerance
    ]


def difference(suspect: Suspect) -> Difference:
    """The suspect in its context."""
    position = suspect.answer.positions[suspect.index]
    return Difference(
        prompt=suspect.answer.prompt,
        index=suspect.index,
        before=before(suspect.answer.positions, suspect.index),
        emitted=position.text,
        best=position.best_text,
        gap=position.gap,
    )


def before(positions: Sequence[Position], index: int) -> str:
    """The last tokens of the answer before an index, as text."""
    return "".join(position.text for position in positions[max(0, index - _BEFORE) : index])


def judge(
    answers: Sequence[Answer],
    confirmed: Sequence[Suspect],
    *,
    unstable: int,
    unchecked: int = 0,
    tie_tolerance: float,
) -> Greedy:
    """The verdict on all greedy answers.

    `confirmed`: the suspects that a second score did not clear; `unstable`: how many it cleared; `unchecked`: how many
    had none.
    """
    gaps = [position.gap for answer in answers for position in answer.positions]
    ties = [gap for gap in gaps if 0 < gap <= tie_tolerance]
    enough = tokens_for(MARGIN)
    missing = max(0, enough - len(gaps))
    verdict = Verdict.NO_FAULT_FOUND if missing else Verdict.LOSSLESS
    if confirmed:
        verdict = Verdict.LOSSY
    elif unchecked or not gaps:
        verdict = Verdict.INCONCLUSIVE
    is_bounded = verdict in (Verdict.LOSSLESS, Verdict.NO_FAULT_FOUND)
    return Greedy(
        verdict=verdict,
        requests=len(answers),
        tokens=len(gaps),
        best=sum(gap == 0 for gap in gaps),
        near_ties=len(ties),
        largest_gap=max(ties, default=0.0),
        tie_tolerance=tie_tolerance,
        differences=tuple(difference(suspect) for suspect in confirmed),
        unstable=unstable,
        unchecked=unchecked,
        tokens_needed=0 if confirmed else missing,
        excluded_share=excluded_share(len(gaps)) if is_bounded else None,
    )


def tokens_for(share: float) -> int:
    """How many tokens without a wrong one exclude that share of wrong ones, at 99 % (two-sided)."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-share))


def excluded_share(tokens: int) -> float:
    """The share of wrong tokens that so many tokens without a wrong one exclude: the inverse of `tokens_for`."""
    return -math.expm1(math.log((1 - CONFIDENCE) / 2) / tokens)
