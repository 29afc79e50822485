"""What the figures of a window come to, in one word and one sentence. Pure; advises nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specserve.measure.watch.collapse import Collapse
from specserve.measure.watch.figures import (
    NUMBER_DRAFTS,
    VERDICT_DRAFTS,
    VERDICT_REQUESTS,
    Figures,
)
from specserve.measure.watch.promises import Kept, Promise, missed

FALLEN_SHARE = 0.85
"""A mean acceptance length whose whole interval lies under this share of what it was before has fallen."""


class State(StrEnum):
    """What is the matter, worst first."""

    UNSEEN = "UNSEEN"
    """No metrics: the server is missing, or it is none of vLLM's."""
    OFF = "OFF"
    """The server does not speculate."""
    COLLAPSED = "COLLAPSED"
    UNDRAFTED = "UNDRAFTED"
    """It speculates, and output tokens come without a single draft."""
    IDLE = "IDLE"
    UNDECIDED = "UNDECIDED"
    """Too little traffic for a verdict."""
    MISSED = "MISSED"
    """A promise of the profile is not kept."""
    FALLEN = "FALLEN"
    """The mean acceptance length is lower than before."""
    KEPT = "KEPT"
    """Every promise that can be seen is kept."""
    STEADY = "STEADY"
    """It works as it did; without promises, nothing more can be said of it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word and one sentence."""

    state: State
    sentence: str


def judge(
    seen: Figures,
    *,
    collapsed: tuple[Collapse, ...] = (),
    promised: tuple[Promise, ...] = (),
    before: float | None = None,
) -> Verdict:
    """The worst that the figures show. `before`: the mean acceptance length of the time before the window."""
    counted = seen.acceptance
    if not seen.speculates:
        return Verdict(State.OFF, "the server does not speculate: it has no speculation counters")
    if collapsed:
        return Verdict(State.COLLAPSED, _collapsed(collapsed, engines=len(seen.engines)))
    if not counted.drafts and seen.counters.generation_tokens >= NUMBER_DRAFTS:
        tokens = f"{seen.counters.generation_tokens:,} output tokens"
        return Verdict(State.UNDRAFTED, f"{tokens} came without a single draft")
    if not counted.drafts and not seen.counters.generation_tokens:
        return Verdict(State.IDLE, f"no traffic in the last {seen.window_s:.0f} s")
    broken = missed(promised)
    if broken:
        return Verdict(State.MISSED, "; ".join(_broken(promise) for promise in broken))
    if not seen.is_enough or seen.mean_acceptance_length is None:
        return Verdict(State.UNDECIDED, _too_little(seen))
    high = seen.mean_acceptance_length_interval and seen.mean_acceptance_length_interval[1]
    if before is not None and high and high < FALLEN_SHARE * before:
        text = f"the mean acceptance length fell to {seen.mean_acceptance_length:.2f}; it was {before:.2f} before"
        return Verdict(State.FALLEN, text)
    if promised and all(promise.kept in {Kept.KEPT, Kept.UNSEEN} for promise in promised):
        kept = sum(promise.kept is Kept.KEPT for promise in promised)
        if kept:
            return Verdict(State.KEPT, f"{_count(kept, 'promise')} of the profile kept")
    return Verdict(State.STEADY, _steady(seen.mean_acceptance_length))


def _collapsed(collapsed: tuple[Collapse, ...], *, engines: int) -> str:
    worst = collapsed[0]
    text = f"the draft is dead: {worst.length:.2f} tokens per step in the last {worst.for_s:.0f} s"
    if worst.before is not None and worst.before > worst.length:
        text += f", {worst.before:.2f} before"
    if engines > 1:
        names = ", ".join(collapse.engine.engine for collapse in collapsed)
        text = f"engine{'s' if len(collapsed) > 1 else ''} {names} of {engines}: {text}"
    return text


def _broken(promise: Promise) -> str:
    assert promise.measured is not None
    unit = " ms" if promise.key.endswith("_ms") else ""
    digits = 0 if unit else 2
    return (
        f"`{promise.key}` is {promise.measured:.{digits}f}{unit}, "
        f"and {promise.promised:g}{unit} was promised ({promise.span})"
    )


def _too_little(seen: Figures) -> str:
    return (
        f"too little traffic for a verdict: {seen.acceptance.drafts:,} of {VERDICT_DRAFTS:,} drafts, "
        f"{seen.counters.finished_requests} of {VERDICT_REQUESTS} finished requests"
    )


def _steady(length: float) -> str:
    return f"a step yields {length:.2f} tokens: speculation pays while a step costs under {length:.2f} plain ones"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
