"""What the figures of a window come to: a state, one sentence, and what to do by four rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.measure.expect import Judged, Kept, judge, limits
from specserve.measure.intervals import Estimate
from specserve.measure.verdict import Verdict
from specserve.measure.watch.window import MIN_DRAFTS, Reading, WindowFigures
from specserve.metrics.counters import Acceptance, since
from specserve.profile.schema import Profile

DEAD_DRAFT_LENGTH = 1.05
"""Mean acceptance length of a dead draft: of 20 steps, one accepts one draft token."""
_DEAD_FOR_S = 15.0
_UNDRAFTED_SHARE = 0.1
_WORTH_SHARE = 0.05
"""Of a step's tokens, what a position must add: drafting one costs 2 to 10 % of a step."""
_LONGER = "use a longer `--window`"

UNSEEN, OFF, COLLAPSED, MISSED = "UNSEEN", "OFF", "COLLAPSED", "MISSED"
UNDECIDED, STEADY = "UNDECIDED", "STEADY"
"""What is the matter: no metrics, no speculation, a dead draft, a promise that is not kept, too
little to tell, or nothing; the first that applies."""


def verdict_of(word: str, sentence: str) -> Verdict:
    """Return the verdict with this word."""
    is_bad = word in (COLLAPSED, MISSED)
    return Verdict(word, "bad" if is_bad else "good" if word == STEADY else "open", sentence)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in one sentence, and a word for programs."""

    code: str
    sentence: str


def shown(interval: Estimate | None, unit: str = "") -> str:
    """Return a figure with its interval: `4.35 (95 %: 4.00 to 4.70)`."""
    if interval is None:
        return "-"
    low, digits = interval.low, 0 if unit else 2
    if math.isinf(interval.high):
        return f"{low:.{digits}f}{unit} or more (95 %)"
    bounds = f"95 %: {low:.{digits}f} to {interval.high:.{digits}f}"
    return f"{interval.value:.{digits}f}{unit} ({bounds})"


def promise_words(promise: Judged) -> str:
    """Return what was measured, and what was promised where."""
    limit, unit = promise.limit, " ms" if promise.limit.key.endswith("_ms") else ""
    promised = f"{limit.promised:g}{unit} was promised ({limit.place})"
    figure = f" is {shown(promise.measured, unit)}, and" if promise.measured is not None else ":"
    return f"`{limit.key}`{figure} {promised}"


def judge_promises(profile: Profile, seen: WindowFigures) -> tuple[Judged, ...]:
    """Hold each limit of a profile against the window. Counters tell no workload or temperature."""
    why = "a server's metrics do not show it: `specserve bench` measures it"
    return tuple(
        judge(limit, getattr(seen, figure))
        if hasattr(seen, figure := limit.key[len("min_") :])
        else Judged(limit, Kept.NOT_JUDGED, why=why)
        for limit in limits(profile, None, None, seen.running_requests)
    )


def dead_drafts(readings: Sequence[Reading]) -> str | None:
    """Return what the newest drafts of an engine show if they are refused.

    Newest is the shortest time that holds 200 of its drafts and is 15 s long, or the whole window:
    what went well before does not hide it. Each engine is judged alone: in the sum of eight, one
    dead one does not show.
    """
    last, found = readings[-1], []
    for_s = min(_DEAD_FOR_S, last.at_s - readings[0].at_s)
    for name, engine in last.metrics.engines.items():
        for reading in reversed(readings):
            before = reading.metrics.engines[name].counters.acceptance
            newest = since(before, now=engine.counters.acceptance) or Acceptance()
            if newest.drafts >= MIN_DRAFTS and last.at_s - reading.at_s >= for_s:
                length = newest.mean_acceptance_length or 1.0
                found += [f"{length:.2f} (engine {name.engine})"] * (length < DEAD_DRAFT_LENGTH)
                break
    return f"the newest drafts give {', '.join(found)} tokens per step" if found else None


def judge_window(
    readings: Sequence[Reading], seen: WindowFigures, *, promises: Sequence[Judged] = ()
) -> Verdict:
    """Return the worst that the figures show."""
    drafts, length = seen.counted.acceptance.drafts, seen.mean_acceptance_length
    if not seen.speculates:
        return verdict_of(OFF, "the server does not speculate: it has no speculation counters")
    if (dead := dead_drafts(readings)) is not None:
        return verdict_of(COLLAPSED, f"the draft is dead: {dead}")
    if not drafts and not seen.counted.generation_tokens:
        return verdict_of(UNDECIDED, f"no traffic in {seen.seconds:.0f} s")
    if missed := [each for each in promises if each.kept is Kept.MISSED]:
        return verdict_of(MISSED, "; ".join(map(promise_words, missed)))
    if length is None:
        text = f"{drafts:,} drafts in {seen.seconds:.0f} s give no interval yet: {_LONGER}"
        return verdict_of(UNDECIDED, text)
    figure = f"the mean acceptance length is {shown(length)}"
    if length.low < DEAD_DRAFT_LENGTH:
        text = f"{figure}, and a draft below {DEAD_DRAFT_LENGTH} is dead: {_LONGER}"
        return verdict_of(UNDECIDED, text)
    for each in promises:
        if each.kept is Kept.UNDECIDED and not each.limit.key.endswith("_ms"):
            return verdict_of(UNDECIDED, f"{promise_words(each)}: {_LONGER}")
    kept = sum(each.kept is Kept.KEPT for each in promises)
    return verdict_of(STEADY, figure + (f"; promises kept: {kept}" if kept else ""))


def advise(seen: WindowFigures, word: str) -> Advice | None:
    """Return the first of four rules that applies. `word`: of the verdict."""
    drafted, share = seen.counted.acceptance, seen.undrafted_share
    if word == COLLAPSED:
        return Advice(
            "restart",
            "restart the server; if the draft stays dead, run `specserve check` on it; until then "
            "`specserve up --alternative baseline` serves the same text",
        )
    if seen.speculates and share is not None and share >= _UNDRAFTED_SHARE:
        return Advice(
            "nothing_drafted",
            f"{share:.0%} of the output tokens came without a draft: raise the draft's "
            "`max_model_len` or the batch-size schedule; `ngram` and `suffix` found no copy there",
        )
    if seen.counted.preemptions:
        return Advice(
            "overload",
            "send fewer requests at once (`max_num_seqs`), or lower `num_speculative_tokens`: the "
            f"KV cache is full, and {seen.counted.preemptions:,} preemptions lost work",
        )
    worth, tokens, last = 0, 1.0, len(drafted.per_position)
    for position, gain in enumerate(drafted.per_position, start=1):
        worth = position if gain / tokens >= _WORTH_SHARE else worth
        tokens += gain
    # later positions also read low if K varies
    is_fixed = drafted.draft_tokens >= 0.98 * last * drafted.drafts
    if word == STEADY and is_fixed and 0 < worth < last:
        added = sum(drafted.per_position[worth:]) / tokens
        return Advice(
            "fewer_tokens",
            f"try `num_speculative_tokens: {worth}`: the positions after that add {added:.0%} of "
            "the tokens, less than they cost",
        )
    return None
