"""The verdicts on greedy tokens and on sampled ones, from scores alone.

Let q be the distribution at a position over the likeliest tokens, from the scores of a plain
prefill and the temperature, and l(x) = log p(x) / T. For a token x that was drawn from q,
E_q[l] - l(x) has the expected value 0 and the variance Var_q[l], whatever came before. Its sum over
the sum of the variances estimates the error of the temperature, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from specserve.measure import statistics
from specserve.measure.statistics import INCONCLUSIVE, Estimate
from specserve.measure.verify.result import (
    CONFIDENCE,
    LOSSLESS,
    LOSSY,
    NO_FAULT_FOUND,
    Greedy,
    Sampled,
    WrongToken,
    verdict_of,
)
from specserve.measure.verify.session import Position, ScoredText

TIE_TOLERANCE = 0.25
"""Nats; two steps of bf16 between 16 and 32, where the best logits of large models lie."""
LOSSLESS_SHARE = 0.015
"""The share of wrong greedy tokens that LOSSLESS excludes: it takes 351 tokens."""
LOSSY_PERCENT, LOSSLESS_PERCENT = 1.0, 5.0
"""A temperature whose whole interval is off by more than the first (rounding moves it by less) is
LOSSY; one whose whole interval is off by less than the second is LOSSLESS."""
WIDEST_PERCENT = 50.0
"""An interval that reaches further excludes nothing: the estimate is of first order."""
STRAY = 1e-4
"""A token is a stray if it and all less likely ones have no larger chance than this together."""
STRAY_CHANCE = 1e-4
"""Strays are LOSSY if a right server has as many with no larger chance than this."""
_BEFORE = 6
"""Tokens of context that are shown."""
_MAX_VOCABULARY = 1 << 18
_ROUNDING = 1e-5
"""Of the sum of twenty probabilities that came as float32 logarithms."""
_LOGITS = 1.01
"""A larger sum is none of probabilities: the server shows logits (vLLM's `logprobs_mode`)."""


def suspects(answers: Sequence[ScoredText]) -> list[tuple[ScoredText, int]]:
    """Returns the tokens that the best one beats by more than a tie, the furthest behind first."""
    found = [
        (answer, index)
        for answer in answers
        for index, position in enumerate(answer.positions)
        if position.gap > TIE_TOLERANCE
    ]
    return sorted(found, key=lambda item: -item[0].positions[item[1]].gap)


def judge_greedy(
    answers: Sequence[ScoredText],
    wrong: Sequence[tuple[ScoredText, int]] = (),
    *,
    cleared: int = 0,
) -> Greedy:
    """Returns the verdict on all greedy answers.

    `wrong`: the suspects that a second score did not clear; `cleared`: how many it cleared.
    """
    gaps = [position.gap for answer in answers for position in answer.positions]
    share = Estimate(0.0, 0.0, 1.0, 0, _EXACT)
    if gaps:
        found = statistics.library("scipy.stats").binomtest(len(wrong), len(gaps))
        low, high = map(float, found.proportion_ci(CONFIDENCE))
        share = Estimate(len(wrong) / len(gaps), low, high, len(gaps), _EXACT)
    word = LOSSLESS if share.high <= LOSSLESS_SHARE else NO_FAULT_FOUND
    if wrong:
        word = LOSSY
    elif not gaps:
        word = INCONCLUSIVE
    return Greedy(
        verdict=verdict_of(word),
        answers=len(answers),
        tokens=len(gaps),
        near_ties=sum(0 < gap <= TIE_TOLERANCE for gap in gaps),
        wrong_share=share,
        wrong=tuple(_wrong_token(*item) for item in wrong),
        cleared_on_rescore=cleared,
    )


def _wrong_token(answer: ScoredText, index: int) -> WrongToken:
    here, before = answer.positions[index], answer.positions[max(0, index - _BEFORE) : index]
    text = "".join(item.text for item in before)
    return WrongToken(answer.prompt, index, text, here.text, here.best_text, here.gap)


class Tally(NamedTuple):
    """Sums over the sampled tokens of one answer."""

    tokens: int = 0
    strays: int = 0
    score: float = 0.0
    """Of E_q[l] - l(x): how much less likely the tokens are than they should be, in nats."""
    information: float = 0.0
    """Of Var_q[l]: what the tokens tell of the logarithm of the temperature."""


def tally(positions: Sequence[Position], temperature: float) -> Tally:
    """Returns the tally of one answer. A token beyond the likeliest is a stray at most."""
    strays, score, information = 0, 0.0, 0.0
    for position in positions:
        scores = [logprob / temperature for _, logprob in position.top]
        weights = [math.exp(each - scores[0]) for each in scores]
        total = math.fsum(weights)
        ids = [token for token, _ in position.top]
        rank = ids.index(position.token) if position.token in ids else len(ids)
        most = min(position.logprob, position.top[-1][1])
        tail = math.fsum(weights[rank:]) + beyond(position, temperature, most=most)
        strays += tail <= STRAY * total
        if rank < len(ids):
            mean = math.fsum(w * each for w, each in zip(weights, scores, strict=True)) / total
            squares = (w * (each - mean) ** 2 for w, each in zip(weights, scores, strict=True))
            score += mean - scores[rank]
            information += math.fsum(squares) / total
    return Tally(len(positions), strays, score, information)


def beyond(position: Position, temperature: float, *, most: float) -> float:
    """Returns the most that the tokens beyond the likeliest weigh together; the best one weighs 1.

    Only those count whose log-probability is at most `most`. A token of probability p weighs p^s,
    with s = 1/T: for s >= 1 they are at most (sum of p) * most^(s - 1) together. Hotter texts have
    no bound, and so no strays.
    """
    seen, exponent = math.fsum(math.exp(logprob) for _, logprob in position.top), 1 / temperature
    if seen > _LOGITS or exponent < 1:
        return math.inf
    rest = math.log(max(0.0, 1.0 - seen) + _ROUNDING)
    total = min(rest, math.log(_MAX_VOCABULARY) + most)
    return math.exp(min(total + most * (exponent - 1) - position.top[0][1] * exponent, 50.0))


def judge_sampled(tallies: Sequence[Tally], temperature: float) -> Sampled:
    """Returns the verdict on these answers, each with its tally."""
    tokens, strays = sum(one.tokens for one in tallies), sum(one.strays for one in tallies)
    error = _temperature_error(tallies)
    reasons = []
    if max(error.low, -error.high) > LOSSY_PERCENT:
        higher = "higher" if error.value > 0 else "lower"
        low, high = sorted((abs(error.low), abs(error.high)))
        reasons.append(
            f"the tokens are sampled at a temperature {abs(error.value):.1f} % {higher} than "
            f"requested (99 % interval: {low:.1f} to {high:.1f} %)"
        )
    chance = statistics.library("scipy.special").bdtrc(strays - 1, tokens, STRAY) if strays else 1.0
    if chance < STRAY_CHANCE:
        reasons.append(
            f"{strays:,} of {tokens:,} sampled tokens are of the least likely {100 * STRAY:g} %, "
            f"where at most {tokens * STRAY:,.1f} are expected"
        )
    excluded = max(-error.low, error.high)
    word = NO_FAULT_FOUND
    if reasons:
        word = LOSSY
    elif excluded > WIDEST_PERCENT:
        word = INCONCLUSIVE
    elif excluded <= LOSSLESS_PERCENT:
        word = LOSSLESS
    return Sampled(
        temperature=temperature,
        verdict=verdict_of(word, "; ".join(reasons)),
        answers=len(tallies),
        tokens=tokens,
        temperature_error_percent=error,
        excluded_percent=excluded if not reasons and excluded <= WIDEST_PERCENT else None,
        strays=strays,
    )


def _temperature_error(tallies: Sequence[Tally]) -> Estimate:
    """Returns the error in percent. Of two standard errors the larger one counts.

    They are that of the distributions, and that of the scatter between answers, whose tokens are
    not independent of each other.
    """
    used = [one for one in tallies if one.information > 0]
    if len(used) < 2:
        return Estimate(0.0, -math.inf, math.inf, len(used), _METHOD)
    information = math.fsum(one.information for one in used)
    value = math.fsum(one.score for one in used) / information
    spread = math.fsum((one.score - value * one.information) ** 2 for one in used)
    scatter = math.sqrt(spread * len(used) / (len(used) - 1)) / information
    quantile = statistics.t_quantile((1 + CONFIDENCE) / 2, freedom=len(used) - 1)
    half = quantile * max(scatter, 1 / math.sqrt(information))
    low, high = 100 * (value - half), 100 * (value + half)
    return Estimate(100 * value, low, high, len(used), _METHOD)


_METHOD = "99 %, Student's t over answers"
_EXACT = "99 %, exact binomial"
