"""The verdicts on greedy tokens and on sampled ones, from scores alone.

Let q be the distribution at a position over the likeliest tokens, from the scores of a plain
prefill and the temperature, and l(x) = log p(x) / T. For a token x that was drawn from q,
E_q[l] - l(x) has the expected value 0 and the variance Var_q[l], whatever came before. Its sum over
the sum of the variances estimates the error of the temperature, to first order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specserve.measure.verdict import INCONCLUSIVE, Estimate, Verdict, library, t_quantile

CONFIDENCE = 0.99
"""Of every interval, and of what a run excludes."""
LOSSLESS = "LOSSLESS"
"""No fault found, and every fault larger than the fixed margins is excluded."""
NO_FAULT_FOUND = "NO FAULT FOUND"
"""No fault found; the faults that are excluded are larger than the margins."""
LOSSY = "LOSSY"
LEVELS: Mapping[str, Literal["good", "open", "bad"]] = {
    LOSSLESS: "good",
    NO_FAULT_FOUND: "open",
    INCONCLUSIVE: "open",
    LOSSY: "bad",
}
"""The words of a verification, best first; INCONCLUSIVE: too little to exclude anything."""
Outcome = Literal["ok", "not ok", "skipped"]


def verdict_of(word: str, sentence: str = "") -> Verdict:
    """Returns the verdict with this word."""
    return Verdict(word, LEVELS[word], sentence)


@dataclass(frozen=True, slots=True)
class Position:
    """One emitted token and what the target thought of it: nats, at temperature 1."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with their log-probabilities, best first; perhaps without this one."""
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
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """One temperature: the server's tokens against a plain prefill."""

    temperature: float
    verdict: Verdict
    """Its sentence is the fault, or the smallest fault that the run excludes."""
    answers: int
    tokens: int
    fault_percent: Estimate
    """At 0, wrong tokens; above, how much hotter (+) or colder (-) they are drawn than asked."""
    excluded_percent: float | None
    """A larger fault is excluded; None if one was found, or if none is excluded."""
    wrong: tuple[str, ...] = ()
    """At 0, in words: tokens that were also wrong when they were scored again, alone."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """One smoke test. `detail`: what was seen, or why it was not tried."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it; its fields are the keys of its JSON."""

    url: str
    model: str
    verdict: Verdict
    """The worst of the temperatures, with all faults, or else with all that is excluded."""
    has_failed: bool
    """Whether anything is wrong: a lossy temperature or a smoke test."""
    elapsed_s: float
    against: str | None
    """The URL of the other server, which scored the answers."""
    temperatures: tuple[Compared, ...]
    smoke: tuple[Smoke, ...]
    unused_prompts: Mapping[str, str]


TIE_TOLERANCE = 0.25
"""Nats; two steps of bf16 between 16 and 32, where the best logits of large models lie."""
WRONG_PERCENT = 1.5
"""Of wrong greedy tokens: what LOSSLESS excludes; it takes 351 tokens."""
LOSSY_PERCENT, LOSSLESS_PERCENT = 1.0, 5.0
"""A temperature whose whole interval is off by more than the first (rounding moves it by less) is
LOSSY; one whose whole interval is off by less than the second is LOSSLESS."""
WIDEST_PERCENT = 50.0
"""An interval that reaches further excludes nothing: the estimate is of first order."""
STRAY = 1e-4
"""So large is the chance of a stray at most, at any position and temperature: its own chance is no
larger than this over the tokens of the largest vocabulary."""
STRAY_CHANCE = 1e-4
"""Strays are LOSSY if a right server has as many with no larger chance than this."""
_MAX_VOCABULARY = 1 << 18


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
    answers: Sequence[ScoredText], wrong: Sequence[tuple[ScoredText, int]] = ()
) -> Compared:
    """Returns the verdict on all greedy answers. `wrong`: suspects that a second score confirms."""
    tokens = sum(len(answer.positions) for answer in answers)
    value, low, high = 0.0, 0.0, 100.0
    if tokens:
        test = library("scipy.stats").binomtest(len(wrong), tokens)
        low, high = (100 * float(end) for end in test.proportion_ci(CONFIDENCE))
        value = 100 * len(wrong) / tokens
    word = LOSSLESS if high <= WRONG_PERCENT else NO_FAULT_FOUND
    sentence = f"more than {_rounded_up(high)} % wrong tokens"
    if wrong:
        word, sentence = LOSSY, f"{len(wrong):,} of {tokens:,} tokens are wrong"
    elif not tokens:
        word, sentence = INCONCLUSIVE, ""
    shown = []
    for answer, index in wrong:
        here = answer.positions[index]
        came, best = (json.dumps(text, ensure_ascii=False) for text in (here.text, here.best_text))
        told = f"{came} came, the target prefers {best} (by {here.gap:.2f} nats)"
        shown.append(f"{answer.prompt}, token {index}: {told}")
    return Compared(
        temperature=0.0,
        verdict=verdict_of(word, sentence),
        answers=len(answers),
        tokens=tokens,
        fault_percent=Estimate(value, low, high, tokens, "99 %, exact binomial"),
        excluded_percent=None if wrong or not tokens else high,
        wrong=tuple(shown),
    )


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
        scores = {token: logprob / temperature for token, logprob in position.top}
        best = max(scores.values())
        weights = {token: math.exp(each - best) for token, each in scores.items()}
        total = math.fsum(weights.values())
        own = math.exp(position.logprob / temperature - best)
        strays += own <= STRAY / _MAX_VOCABULARY * total
        if position.token in scores:
            mean = math.fsum(weights[token] * scores[token] for token in scores) / total
            squares = (weights[token] * (scores[token] - mean) ** 2 for token in scores)
            score += mean - scores[position.token]
            information += math.fsum(squares) / total
    return Tally(len(positions), strays, score, information)


def judge_sampled(tallies: Sequence[Tally], temperature: float) -> Compared:
    """Returns the verdict on these answers, each with its tally."""
    tokens, strays = sum(one.tokens for one in tallies), sum(one.strays for one in tallies)
    error = _temperature_error(tallies)
    faults = []
    if max(error.low, -error.high) > LOSSY_PERCENT:
        higher = "higher" if error.value > 0 else "lower"
        low, high = sorted((abs(error.low), abs(error.high)))
        faults.append(
            f"the tokens are sampled at a temperature {abs(error.value):.1f} % {higher} than "
            f"requested (99 % interval: {low:.1f} to {high:.1f} %)"
        )
    chance = library("scipy.special").bdtrc(strays - 1, tokens, STRAY) if strays else 1.0
    if chance < STRAY_CHANCE:
        faults.append(
            f"{strays:,} of {tokens:,} sampled tokens are of the least likely {100 * STRAY:g} %, "
            f"where at most {tokens * STRAY:,.1f} are expected"
        )
    excluded = max(-error.low, error.high)
    word = LOSSLESS if excluded <= LOSSLESS_PERCENT else NO_FAULT_FOUND
    sentence = f"a temperature wrong by more than {_rounded_up(excluded)} %"
    if faults:
        word, sentence = LOSSY, "; ".join(faults)
    elif excluded > WIDEST_PERCENT:
        word, sentence = INCONCLUSIVE, ""
    return Compared(
        temperature=temperature,
        verdict=verdict_of(word, sentence),
        answers=len(tallies),
        tokens=tokens,
        fault_percent=error,
        excluded_percent=excluded if word in (LOSSLESS, NO_FAULT_FOUND) else None,
    )


def _temperature_error(tallies: Sequence[Tally]) -> Estimate:
    """Returns the error in percent. Of two standard errors the larger one counts.

    They are that of the distributions, and that of the scatter between answers, whose tokens are
    not independent of each other.
    """
    used = [one for one in tallies if one.information > 0]
    method = "99 %, Student's t over answers"
    if len(used) < 2:
        return Estimate(0.0, -math.inf, math.inf, len(used), method)
    information = math.fsum(one.information for one in used)
    value = math.fsum(one.score for one in used) / information
    spread = math.fsum((one.score - value * one.information) ** 2 for one in used)
    scatter = math.sqrt(spread * len(used) / (len(used) - 1)) / information
    quantile = t_quantile((1 + CONFIDENCE) / 2, freedom=len(used) - 1)
    half = quantile * max(scatter, 1 / math.sqrt(information))
    low, high = 100 * (value - half), 100 * (value + half)
    return Estimate(100 * value, low, high, len(used), method)


def _rounded_up(percent: float) -> str:
    """With one digit; a bound is never rounded down."""
    return f"{math.ceil(10 * percent) / 10:.1f}" if percent < math.inf else "any"
