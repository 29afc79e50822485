"""Whether greedy tokens are the target's best ones, and whether two servers write the same greedy text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from specserve.measure.verify.result import (
    CONFIDENCE,
    Against,
    Greedy,
    Likeness,
    Parting,
    VerifyVerdict,
    WrongToken,
)
from specserve.measure.verify.session import Position, ScoredText

TIE_TOLERANCE = 0.25
"""Nats; two steps of bf16 between 16 and 32, where the best logits of large models lie."""
MARGIN = 0.015
"""The share of wrong tokens that must be excluded for LOSSLESS."""
_BEFORE = 6


@dataclass(frozen=True, slots=True)
class Suspect:
    """An answer, and the index of a token in it that the target would not have chosen."""

    answer: ScoredText
    index: int

    @property
    def shown(self) -> WrongToken:
        """The token with its context."""
        position = self.answer.positions[self.index]
        return WrongToken(
            prompt=self.answer.prompt,
            index=self.index,
            before=_text_before(self.answer, self.index),
            emitted=position.text,
            best=position.best_text,
            gap=position.gap,
        )


def suspects(answer: ScoredText) -> list[Suspect]:
    """Returns the tokens that are behind the best one by more than a tie."""
    gaps = enumerate(position.gap for position in answer.positions)
    return [Suspect(answer, index) for index, gap in gaps if gap > TIE_TOLERANCE]


def _text_before(answer: ScoredText, index: int) -> str:
    return "".join(position.text for position in answer.positions[max(0, index - _BEFORE) : index])


def judge(
    answers: Sequence[ScoredText],
    confirmed: Sequence[Suspect],
    *,
    unstable: int,
    unchecked: int = 0,
    unasked: int = 0,
    cut: int = 0,
) -> Greedy:
    """Returns the verdict on all greedy answers.

    `confirmed`: the suspects that a second score did not clear; `unstable`: how many it cleared; `unchecked`: how many
    had none; `unasked`, `cut`: as in the result.
    """
    gaps = [position.gap for answer in answers for position in answer.positions]
    ties = [gap for gap in gaps if 0 < gap <= TIE_TOLERANCE]
    missing = 0 if confirmed else max(0, tokens_for(MARGIN) - len(gaps))
    verdict = VerifyVerdict.NO_FAULT_FOUND if missing else VerifyVerdict.LOSSLESS
    if confirmed:
        verdict = VerifyVerdict.LOSSY
    elif unchecked or not gaps:
        verdict = VerifyVerdict.INCONCLUSIVE
    is_bounded = verdict in (VerifyVerdict.LOSSLESS, VerifyVerdict.NO_FAULT_FOUND)
    return Greedy(
        verdict=verdict,
        requests=len(answers),
        tokens=len(gaps),
        best=sum(gap == 0 for gap in gaps),
        near_ties=len(ties),
        largest_gap=max(ties, default=0.0),
        tie_tolerance=TIE_TOLERANCE,
        differences=tuple(suspect.shown for suspect in confirmed),
        unstable=unstable,
        unchecked=unchecked,
        tokens_needed=missing,
        excluded_share=excluded_share(len(gaps)) if is_bounded else None,
        unasked=unasked,
        cut=cut,
    )


def tokens_for(share: float) -> int:
    """Returns how many tokens without a wrong one exclude that share of wrong ones, at 99 % (two-sided)."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-share))


def excluded_share(tokens: int) -> float:
    """Returns the share of wrong tokens that so many tokens without a wrong one exclude, as `tokens_for` does."""
    return -math.expm1(math.log((1 - CONFIDENCE) / 2) / tokens)


MEAN_TOLERANCE = 0.1
"""Nats: the same weights on other kernels differ by a few hundredths on average, other weights by more."""
OWN_TOLERANCE = 0.002
"""Nats on average that are rounding in any case; beside it, what a server differs from itself."""
_TIMES_OWN = 5.0


class TextPair(NamedTuple):
    """One prompt: the text of this server as it scores it itself, the same as the other one scores it, and its text."""

    mine: ScoredText
    seen_there: tuple[Position, ...]
    theirs: ScoredText
    seen_again: tuple[Position, ...] = ()
    """What this server thinks of the text a second time."""


def compare(pairs: Sequence[TextPair], *, url: str, model: str) -> Against:
    """Returns what the pairs say together."""
    partings = tuple(found for pair in pairs if (found := parting(pair)))
    both = [item for pair in pairs for item in zip(pair.mine.positions, pair.seen_there, strict=False)]
    again = [item for pair in pairs for item in zip(pair.mine.positions, pair.seen_again, strict=False)]
    other_best = sum(_prefers_another(here, there) for here, there in both)
    differences = [abs(here.logprob - there.logprob) for here, there in both] or [0.0]
    mean, own = (
        fmean(differences),
        fmean([abs(here.logprob - there.logprob) for here, there in again] or [0.0]),
    )
    reasons = []
    if faults := sum(not item.is_near_tie for item in partings):
        reasons.append(f"{faults} text{'s' if faults > 1 else ''} part where neither server sees a near-tie")
    if other_best:
        times = "once" if other_best == 1 else f"{other_best} times"
        reasons.append(f"after the same text the best token is another one {times}")
    if mean > MEAN_TOLERANCE:
        reasons.append(f"the same tokens are {mean:.2f} nats more or less likely")
    is_rounding = mean <= max(OWN_TOLERANCE, _TIMES_OWN * own)
    verdict = Likeness.SAME if is_rounding else Likeness.CLOSE
    if reasons:
        verdict = Likeness.DIFFERENT
    elif len(both) < tokens_for(MARGIN):
        verdict = Likeness.INCONCLUSIVE
    return Against(
        url=url,
        model=model,
        verdict=verdict,
        texts=len(pairs),
        equal=len(pairs) - len(partings),
        tokens=len(both),
        partings=partings,
        mean_difference=mean,
        largest_difference=max(differences),
        own_difference=own,
        other_best=other_best,
        reasons=tuple(reasons),
    )


def _prefers_another(here: Position, there: Position) -> bool:
    """Returns whether the best tokens differ, and neither server sees a near-tie between them."""
    mine, theirs = here.top[0][0], there.top[0][0]
    return mine != theirs and min(_gap(here, mine, theirs), _gap(there, theirs, mine)) > TIE_TOLERANCE


def parting(pair: TextPair) -> Parting | None:
    """Returns the first token in which the texts differ; None if they are equal, or one is the other's beginning."""
    both = enumerate(zip(pair.mine.ids, pair.theirs.ids, strict=False))
    index, (mine, theirs) = next((item for item in both if item[1][0] != item[1][1]), (None, (0, 0)))
    scored = min(map(len, (pair.mine.positions, pair.seen_there, pair.theirs.positions)))
    if index is None or index >= scored:  # or beyond what fits into a prompt again
        return None
    here, there = pair.mine.positions[index], pair.seen_there[index]
    gaps = _gap(here, mine, theirs), _gap(there, theirs, mine)
    return Parting(
        prompt=pair.mine.prompt,
        index=index,
        before=_text_before(pair.mine, index),
        here=here.text,
        there=pair.theirs.positions[index].text,
        gap_here=gaps[0],
        gap_there=gaps[1],
        is_near_tie=max(map(abs, gaps)) <= TIE_TOLERANCE,
    )


def _gap(position: Position, one: int, other: int) -> float:
    """Returns how much likelier `one` is than `other`; at least that, if one of them is beyond the likeliest."""
    shown = {**dict(position.top), position.token: position.logprob}
    last = position.top[-1][1]
    return shown.get(one, last) - shown.get(other, last)
