"""Whether greedy tokens are the target's best ones, near-ties allowed for. Pure.

Knows nothing of servers; `run` scores suspects a second time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.measure.verify.result import CONFIDENCE, Difference, Greedy, Verdict
from specserve.measure.verify.scored import Answer, Position

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
