"""What the figures of a window come to: a state, one sentence, and what to do by four rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserve.measure.expect import Judged, Kept, judge, limits
from specserve.measure.statistics import Estimate, Verdict
from specserve.measure.watch.window import MIN_DRAFTS, Reading, WindowFigures
from specserve.metrics.counters import Acceptance, since
from specserve.profile.schema import Profile

DEAD_DRAFT_LENGTH = 1.05
"""Mean acceptance length of a dead draft: of 20 steps, one accepts one draft token."""
_DEAD_FOR_S = 15.0
_UNDRAFTED_SHARE = 0.1
_FULL_SHARE = 0.9
_WORTH_SHARE = 0.05
"""Of a step's tokens, what a position must add: drafting one costs 2 to 10 % of a step."""
_POSITION_DRAFTS, _POSITION_REQUESTS = 1000, 30
"""Advice on single positions, which have no interval, needs this much traffic."""


class WatchState(StrEnum):
    """What is the matter, worst first."""

    UNSEEN = "UNSEEN"
    """No metrics: the server is missing, or it is none of vLLM's."""
    OFF = "OFF"
    """The server does not speculate."""
    COLLAPSED = "COLLAPSED"
    MISSED = "MISSED"
    """A promise of the profile is not kept."""
    UNDECIDED = "UNDECIDED"
    """What decides lies inside the interval, or there is no interval yet."""
    STEADY = "STEADY"


def verdict_of(state: WatchState, sentence: str) -> Verdict:
    """Return a state as a verdict."""
    if state in (WatchState.COLLAPSED, WatchState.MISSED):
        return Verdict(state, "bad", sentence)
    return Verdict(state, "good" if state is WatchState.STEADY else "open", sentence)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, in one sentence, and a word for programs."""

    code: str
    sentence: str


def shown(interval: Estimate | None, unit: str = "") -> str:
    """Return a figure with its interval: `4.35 (95 %: 4.00 to 4.70)`."""
    if interval is None:
        return "-"
    digits = 0 if unit else 2
    value, low, high = (
        f"{each:.{digits}f}" for each in (interval.value, interval.low, interval.high)
    )
    if math.isinf(interval.high):
        return f"{low}{unit} or more (95 %)"
    return f"{value}{unit} (95 %: {low} to {high})"


def promise_words(promise: Judged) -> str:
    """Return what was measured, and what was promised where."""
    limit, unit = promise.limit, " ms" if promise.limit.key.endswith("_ms") else ""
    promised = f"{limit.promised:g}{unit} was promised ({limit.place})"
    figure = f" is {shown(promise.measured, unit)}, and" if promise.measured is not None else ":"
    return f"`{limit.key}`{figure} {promised}"


def judge_promises(profile: Profile, seen: WindowFigures) -> tuple[Judged, ...]:
    """Hold each limit of a profile against the window. Counters tell no workload or temperature."""
    measured = {
        "min_mean_acceptance_length": seen.mean_acceptance_length,
        "min_acceptance_rate": seen.acceptance_rate,
        "max_ttft_p99_ms": seen.ttft_p99_ms,
        "max_tpot_p99_ms": seen.tpot_p99_ms,
    }
    why = "a server's metrics do not show it: `specserve bench` measures it"
    return tuple(
        judge(limit, measured[limit.key])
        if limit.key in measured
        else Judged(limit, Kept.NOT_JUDGED, why=why)
        for limit in limits(profile, None, None, seen.running_requests)
    )


def dead_drafts(readings: Sequence[Reading]) -> str | None:
    """Return what the newest drafts of an engine show if they are refused.

    Newest is the shortest time that holds 200 of its drafts and is 15 s long: what went well before
    does not hide it. Each engine is judged alone: in the sum of eight, one dead one does not show.
    """
    last, found = readings[-1], []
    for name, engine in last.metrics.engines.items():
        for reading in reversed(readings):
            before = reading.metrics.engines[name].counters.acceptance
            newest = since(before, now=engine.counters.acceptance) or Acceptance()
            if newest.drafts >= MIN_DRAFTS and last.at_s - reading.at_s >= _DEAD_FOR_S:
                length = newest.mean_acceptance_length or 1.0
                found += [f"{length:.2f} (engine {name.engine})"] * (length < DEAD_DRAFT_LENGTH)
                break
    return f"the newest drafts give {', '.join(found)} tokens per step" if found else None


def judge_window(
    seen: WindowFigures, *, span_s: float, dead: str | None, promises: Sequence[Judged] = ()
) -> Verdict:
    """Return the worst that the figures show. `span_s`: of a full window; see `dead_drafts`."""
    drafts, tokens = seen.counted.acceptance.drafts, seen.counted.generation_tokens
    if not seen.speculates:
        text = "the server does not speculate: it has no speculation counters"
        return verdict_of(WatchState.OFF, text)
    if dead is not None:
        return verdict_of(WatchState.COLLAPSED, f"the draft is dead: {dead}")
    if not drafts and not tokens:
        return verdict_of(WatchState.UNDECIDED, f"no traffic in {seen.seconds:.0f} s")
    if missed := [each for each in promises if each.kept is Kept.MISSED]:
        return verdict_of(WatchState.MISSED, "; ".join(map(promise_words, missed)))
    length = seen.mean_acceptance_length
    if length is None:
        text = f"{drafts:,} drafts in {seen.seconds:.0f} s are in fewer than 3 parts of the window"
        needed_s = 5 * seen.request_s
        if needed_s > span_s and seen.seconds >= 0.9 * span_s:
            text += f", as a request takes {seen.request_s:.0f} s: use `--window {needed_s:.0f}s`"
        return verdict_of(WatchState.UNDECIDED, f"no interval of the acceptance yet: {text}")
    figure, longer = f"the mean acceptance length is {shown(length)}", "use a longer `--window`"
    if length.high < DEAD_DRAFT_LENGTH:
        return verdict_of(WatchState.COLLAPSED, f"the draft is dead: {figure}")
    if length.low < DEAD_DRAFT_LENGTH:
        text = f"{figure}, and a draft below {DEAD_DRAFT_LENGTH} is dead: {longer}"
        return verdict_of(WatchState.UNDECIDED, text)
    undecided = [each for each in promises if each.kept is Kept.UNDECIDED]
    if of_acceptance := [each for each in undecided if not each.limit.key.endswith("_ms")]:
        text = "; ".join(map(promise_words, of_acceptance))
        return verdict_of(WatchState.UNDECIDED, f"{text}: {longer}")
    kept = sum(each.kept is Kept.KEPT for each in promises)
    text = figure + (f"; promises kept: {kept}" if kept else "")
    text += "".join(f"; `{each.limit.key}` is undecided: {each.why}" for each in undecided)
    return verdict_of(WatchState.STEADY, text)


def advise(
    seen: WindowFigures, state: str, *, has_worked: bool, method: str | None, load: float
) -> Advice | None:
    """Return the first of four rules that applies.

    `has_worked`: since the server's start. `load`: the requests in flight of the promises.
    """
    drafted, share = seen.counted.acceptance, seen.undrafted_share
    if state == WatchState.COLLAPSED:
        until = (
            "until then `specserve up --alternative baseline` serves the same text without the cost"
        )
        if has_worked:
            text = "restart the server, as the draft worked before; if it dies again, try another"
            return Advice("restart", f"{text}; {until}")
        text = "run `specserve check`, as the draft never worked and may not fit this target"
        return Advice("check_draft", f"{text}; {until}")
    if seen.speculates and share is not None and share >= _UNDRAFTED_SHARE:
        why = f"{share:.0%} of the output tokens came without a draft"
        text = "raise the draft's `max_model_len` if prompts are longer, or the batch-size schedule"
        if method in ("ngram", "ngram_gpu", "suffix"):
            text = (
                f"use a draft model or a head if that is too much: `{method}` found no copy there"
            )
        return Advice("nothing_drafted", f"{why}: {text}")
    text = "send fewer requests at once (`max_num_seqs`), or lower `num_speculative_tokens`"
    if seen.counted.preemptions and (seen.most_kv_cache_usage or 1.0) >= _FULL_SHARE:
        why = f"the KV cache is full, and work was lost in {seen.counted.preemptions:,} preemptions"
        return Advice("overload", f"{text}: {why}")
    if seen.running_requests > load + 0.5:
        why = f"{seen.running_requests:.0f} run in parallel, and the profile promises for {load:g}"
        return Advice("overload", f"{text}: {why}")
    last, worth, tokens = len(drafted.per_position), 0, 1.0
    for position, gain in enumerate(drafted.per_position, start=1):
        worth = position if gain / tokens >= _WORTH_SHARE else worth
        tokens += gain
    # later positions also read low if K varies, and some methods draft all of them in one step
    is_fixed = drafted.draft_tokens >= 0.98 * last * drafted.drafts
    is_free = method in ("dflash", "dspark")
    has_enough = drafted.drafts >= _POSITION_DRAFTS
    has_enough = has_enough and seen.counted.finished_requests >= _POSITION_REQUESTS
    if has_enough and is_fixed and not is_free and 0 < worth < last:
        added = sum(drafted.per_position[worth:]) / tokens
        why = f"the positions after that add {added:.0%} of the tokens, less than they cost"
        return Advice("fewer_tokens", f"try `num_speculative_tokens: {worth}`: {why}")
    return None
