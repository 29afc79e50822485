"""What to do next, in one sentence that follows from the figures. It promises no gain that was not measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from specserve.measure.watch.figures import WatchFigures
from specserve.measure.watch.verdict import WatchState, WatchVerdict
from specserve.metrics.counters import Acceptance
from specserve.profile.schema import Profile

WORTH = 0.05
"""Tokens that a draft position must add, as a share of those before it: drafting one costs 2-10 % of a step."""
_MORE_AT = 0.8
_UNDRAFTED_AT = 0.1
_REPEATING_AT = 0.97
_FULL_AT = 0.9
_TOKENS_PER_STEP = 150
"""This many tokens in one step keep an accelerator computing (A100 153, H100 295, in 16 bit); drafts then cost."""
_TOKENS_PER_STEP_CPU = 16
_FREE_DRAFTS = frozenset({"ngram", "ngram_gpu", "suffix"})
_PARALLEL_DRAFTS = frozenset({"dflash", "dspark"})
_POSITION_DRAFTS, _POSITION_REQUESTS = 1000, 30
"""Advice on single positions, which have no interval, needs this much traffic."""
_LONGEST_FACTOR = 100.0
"""A verdict that takes more times the traffic is no reason to wait."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence, and a word for programs."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Case:
    """All that advice may rest on."""

    seen: WatchFigures
    verdict: WatchVerdict
    since_start: Acceptance
    """The engines' counters as they stand: whether it ever worked."""
    profile: Profile | None = None
    span_s: float | None = None
    """How much of the past the window holds when it is full."""
    missed: tuple[str, ...] = ()
    """The keys of the promises that are missed."""

    @property
    def accepts_less(self) -> bool:
        """Whether fewer draft tokens are accepted than before or than promised, which the load does not change."""
        only_acceptance = bool(self.missed) and all(key.startswith("min_") for key in self.missed)
        return self.verdict.state is WatchState.FALLEN or only_acceptance

    @property
    def method(self) -> str | None:
        """The method of speculation, if a profile names it."""
        speculation = self.profile.speculation if self.profile is not None else None
        return speculation.method if speculation is not None else None

    @property
    def keys(self) -> dict[str, object]:
        """vLLM's `speculative_config`, if a profile has it."""
        speculation = self.profile.speculation if self.profile is not None else None
        return dict(speculation.keys) if speculation is not None else {}

    def promised(self, key: str) -> float:
        """Return the largest value of a key of `expect`; 0 without one."""
        expected = self.profile.expect if self.profile is not None else ()
        return max((getattr(item, key) or 0.0 for item in expected), default=0.0)


def advise(case: Case) -> Advice | None:
    """Return the first advice that the figures call for; None if they call for none, or are too few."""
    if case.verdict.state in {WatchState.UNSEEN, WatchState.IDLE}:
        return None
    rules = (_state, _undrafted, _crowded, _greedy, _fallen, _positions, _longer_window)
    return next((Advice(*found) for rule in rules for found in rule(case)), None)


_Found = Iterator[tuple[str, str]]


def _state(case: Case) -> _Found:
    is_meant = case.profile is None or case.profile.speculation is not None
    if not case.seen.whole.speculates and is_meant:
        sentence = "`specserve up` starts it with speculation, if its profile has a `speculation` block"
        if case.profile is not None:
            sentence = (
                "the server was started without it: `specserve up` with this profile, without `--baseline`"
            )
        yield "start_with_speculation", sentence
    if case.verdict.state is not WatchState.COLLAPSED:
        return
    until = "until then `specserve up --baseline` serves the same text without the cost"
    if (case.since_start.mean_acceptance_length or 0) > 1.2:
        again = "restart the server, and if it dies again try another draft"
        yield "restart", f"it worked before: {again}; {until}"
    yield (
        "check_draft",
        "it never worked since the server's start: the draft or head does not belong to this target "
        f"(`specserve check` compares them); {until}",
    )


def _undrafted(case: Case) -> _Found:
    share = case.seen.undrafted_share
    if share is None or share < _UNDRAFTED_AT or not case.seen.whole.speculates:
        return
    text = f"{share:.0%} of the output tokens came without a draft"
    if case.method in _FREE_DRAFTS:
        reason = f"`{case.method}` found nothing to copy there; a draft model or head would draft"
        yield "nothing_to_copy", f"{text}: {reason}"
    length = case.seen.counters.request_prompt_tokens.quantile(0.95)
    prompts = f"; 95 % of the prompts are under {length:,.0f} tokens" if length is not None else ""
    reason = "the context goes beyond the draft's `max_model_len`"
    if "num_speculative_tokens_per_batch_size" in case.keys:
        reason = f"the batch-size schedule drafts nothing there, or {reason}"
    yield "context", f"{text}: {reason}{prompts}"


def _crowded(case: Case) -> _Found:
    """Too many requests for the KV cache, or for drafts that are nearly free."""
    seen, running, known = case.seen, case.seen.running_requests, case.seen.known
    count, usage = seen.counters.preemptions, seen.whole.most_kv_cache_usage
    if count and (usage is None or usage >= _FULL_AT):
        yield (
            "kv_cache",
            f"{count:,} request{'s were' if count > 1 else ' was'} preempted, as the KV cache is full, and their work "
            "is done again: lower `max_num_seqs` or `max_model_len`, or give the draft's memory to the cache "
            "(`specserve check` shows both)",
        )
    hardware = case.profile.hardware if case.profile is not None else None
    limit = _TOKENS_PER_STEP_CPU if hardware and hardware.accelerator == "cpu" else _TOKENS_PER_STEP
    promised = case.promised("concurrency")
    schedule = "a `num_speculative_tokens_per_batch_size` schedule drafts less when it is full"
    if case.accepts_less:
        return  # the load changes what drafts cost, not how many are accepted
    if promised and running > promised + 0.5:
        yield (
            "concurrency",
            f"{running:.1f} requests run in parallel, but the profile promises for {promised:g}. Acceptance does not "
            f"suffer, but each further request reduces the gain; `specserve bench` measures it there, and {schedule}",
        )
    per_step = running * (1 + known.draft_tokens / known.drafts) if known.drafts else 0.0
    if per_step >= limit:
        yield (
            "concurrency",
            f"a step verifies {per_step:.0f} tokens ({running:.1f} requests on average): from about {limit} on a "
            f"draft token is no longer nearly free; `specserve bench` measures whether it pays there, and {schedule}",
        )


def _greedy(case: Case) -> _Found:
    promised = case.promised("temperature")
    drafts_greedily = case.method is not None and case.keys.get("draft_sample_method", "greedy") == "greedy"
    has_lost = case.verdict.state in {WatchState.MISSED, WatchState.FALLEN}
    if has_lost and drafts_greedily and case.method not in _FREE_DRAFTS and promised > 0:
        yield (
            "temperature",
            f"traffic at temperature {promised:g} accepts greedy drafts less often: "
            "`draft_sample_method: probabilistic` drafts as the target samples",
        )


def _fallen(case: Case) -> _Found:
    if case.accepts_less:
        yield (
            "traffic",
            "look for a change in the traffic (language, length, temperature, template), the usual reason; `specserve "
            "bench` with your own prompts tells whether speculation still pays",
        )


def _positions(case: Case) -> _Found:
    """The last draft positions: those that add less than they cost, and one that is nearly always accepted."""
    known, interval = case.seen.known, case.seen.acceptance_rate_interval
    shares, last = known.per_position, len(known.accepted_per_position)
    # later positions also read low if K varies
    varies = known.draft_tokens < 0.98 * last * known.drafts
    is_enough = (
        known.drafts >= _POSITION_DRAFTS and case.seen.counters.finished_requests >= _POSITION_REQUESTS
    )
    has_positions = is_enough and not varies
    worth, tokens = 0, 1.0
    for position, share in enumerate(shares, start=1):
        worth = position if share / tokens >= WORTH else worth
        tokens += share
    if has_positions and case.method not in _PARALLEL_DRAFTS and 0 < worth < last:
        which = f"position {last} adds" if worth + 1 == last else f"positions {worth + 1} to {last} add"
        added = sum(shares[worth:])
        yield (
            "fewer_tokens",
            f"{which} {added:.2f} tokens to a step, {added / tokens:.0%} of them, which is less than drafting and "
            f"verifying costs: try `num_speculative_tokens: {worth}`",
        )
    if interval is not None and interval[0] >= _REPEATING_AT and last >= 2:
        yield (
            "repetition",
            f"{known.acceptance_rate:.0%} of the drafts are accepted, which natural text seldom shows: look whether "
            "the output repeats itself",
        )
    given = known.conditional[-1] if has_positions and last else None
    if given is not None and given >= _MORE_AT and shares[-1] >= 2 * WORTH * tokens:
        yield (
            "more_tokens",
            f"position {last}, the last one, is accepted in {shares[-1]:.0%} of the steps: a larger "
            "`num_speculative_tokens` may yield more; `specserve bench` tells",
        )


def _longer_window(case: Case) -> _Found:
    """For a full window that is too short for this traffic."""
    seconds, span_s, factor = case.seen.whole.seconds, case.span_s, case.verdict.traffic_factor
    is_full = span_s is not None and seconds >= 0.9 * span_s
    if is_full and factor is not None and factor <= _LONGEST_FACTOR:
        minutes = math.ceil(1.2 * factor * seconds / 60)
        ways = f"`--window {minutes}m`, or `--for {minutes}m`"
        yield "longer_window", f"at this traffic a verdict takes about {minutes} min: {ways}"
