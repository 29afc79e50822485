"""One variant against another at one point: the speedup by paired blocks, and its verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from specserve.measure.bench.blocks import paired, passes_of
from specserve.measure.bench.figures import token_samples
from specserve.measure.bench.passes import Pass
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Cell, Comparison, LengthPart, Point
from specserve.measure.intervals import LogEstimate, ratio
from specserve.measure.verdict import INCONCLUSIVE, Verdict, needed, verdict
from specserve.metrics.counters import Acceptance

_LENGTHS, _LENGTH_PARTS = 4.0, 3
"""Prompts whose lengths differ by such a factor are also judged in so many parts."""


def speedup(
    passes: Sequence[Pass],
    *,
    variant: str,
    against: str,
    at: Point,
    launched: int = 2,
    prompts: Collection[str] | None = None,
) -> LogEstimate | None:
    """Return output tokens/s of one variant over those of another, by the blocks that both have.

    `launched`: of the two, those that were started for this. `prompts`: only these. None if one of
    them has nothing.
    """
    mine, theirs = paired(passes, variant, against, at)
    samples = token_samples(mine, prompts)
    return ratio(samples, against=token_samples(theirs, prompts), launched=launched)


def compared(
    plan: BenchPlan,
    passes: Sequence[Pass],
    cells: Mapping[tuple[str, Point], Cell],
    variant: str,
    at: Point,
) -> Comparison:
    """Return one variant compared with the first one at one point."""
    against = plan.variants[0].name
    launched = plan.launched(variant, against)
    mine, theirs = cells[variant, at], cells[against, at]
    is_invalid = bool(mine.invalid or theirs.invalid)
    found = None
    if not is_invalid:
        found = speedup(passes, variant=variant, against=against, at=at, launched=launched)
    if found is None or mine.figures is None or theirs.figures is None:
        missing = f"it needs {'a valid cell' if is_invalid else 'more blocks'}"
        return Comparison(variant, against, at, None, Verdict(INCONCLUSIVE, "open", missing))
    own, other, judged = mine.figures, theirs.figures, verdict(found)
    if judged.level == "open":
        judged = replace(
            judged, sentence=f"{judged.sentence}; {_advice(found, quick=plan.request.quick)}"
        )
    even = None
    if not (other.acceptance and other.acceptance.drafts):  # else its own drafts count, too
        tokens = own.output_tokens
        even = break_even(own.acceptance, output_tokens=tokens, speedup=found.value)
    return Comparison(
        variant=variant,
        against=against,
        point=at,
        speedup=found.estimate,
        verdict=judged,
        break_even_mean_acceptance_length=even,
        mean_acceptance_length=own.acceptance.mean_acceptance_length if own.acceptance else None,
        by_length=tuple(_by_length(passes, variant, against, at, launched)),
    )


def _advice(estimate: LogEstimate, *, quick: bool) -> str:
    """Return what would decide a comparison, as an option, in one clause."""
    what, more = needed(estimate)
    if what == "nothing":
        return "more work would hardly decide it: it is too close to a limit, or varies too much"
    how = {
        "prompts": "run again with a larger file (-w FILE)",
        "launches": f"run again with --launches {estimate.launches + more}",
        "blocks": "go on with `--resume RUN` and a longer `--budget`",
    }
    return f"it needs more {what}: {'run again without --quick' if quick else how[what]}"


def break_even(
    acceptance: Acceptance | None, *, output_tokens: int, speedup: float
) -> float | None:
    """Return the mean acceptance length at which it would be as fast as without speculation.

    A step takes (tokens per step / speedup) as long as one without drafts. Where some steps have no
    draft, as with n-grams, it is the drafted ones whose length would have to change. None if
    nothing was drafted. At least 1: drafts make a step faster only if the machine was busy.
    """
    if acceptance is None or not acceptance.drafts or speedup <= 0:
        return None
    steps = max(output_tokens - acceptance.accepted_tokens, acceptance.drafts)
    drafted = acceptance.drafts / steps
    per_step = 1 + acceptance.accepted_tokens / steps
    return max(1.0, 1 + (per_step / speedup - 1) / drafted)


def _by_length(
    passes: Sequence[Pass], variant: str, against: str, at: Point, launched: int
) -> Iterator[LengthPart]:
    """Yield the speedup of shorter and longer prompts, where prompts differ fourfold in length."""
    requests = [request for each in passes_of(passes, variant, at) for request in each.answered]
    tokens = {each.prompt: each.prompt_tokens for each in requests if each.prompt_tokens}
    ordered = sorted(tokens, key=lambda name: tokens[name])
    count = len(ordered)
    if count < 2 * _LENGTH_PARTS or tokens[ordered[-1]] < _LENGTHS * tokens[ordered[0]]:
        return
    for part in range(_LENGTH_PARTS):
        names = ordered[count * part // _LENGTH_PARTS : count * (part + 1) // _LENGTH_PARTS]
        found = speedup(
            passes, variant=variant, against=against, at=at, launched=launched, prompts=names
        )
        if found is not None:
            shortest, longest = tokens[names[0]], tokens[names[-1]]
            yield LengthPart(shortest, longest, found.estimate, verdict(found))
