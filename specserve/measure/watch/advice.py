"""What to do next, in one sentence that follows from the figures. Pure; promises no gain that was not measured."""

from __future__ import annotations

import math
from collections.abc import Callable
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
"""So many tokens in one step keep an accelerator computing (A100 153, H100 295, in 16 bit); drafts then cost."""
_TOKENS_PER_STEP_CPU = 16
_FREE_DRAFTS = frozenset({"ngram", "ngram_gpu", "suffix"})
_DRAFTS_AT_ONCE = frozenset({"dflash", "dspark"})
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

    @property
    def method(self) -> str | None:
        """The method of speculation, where a profile says it."""
        speculation = self.profile.speculation if self.profile is not None else None
        return speculation.method if speculation is not None else None

    @property
    def key(self) -> dict[str, object]:
        """vLLM's `speculative_config`, where a profile says it."""
        speculation = self.profile.speculation if self.profile is not None else None
        return dict(speculation.keys) if speculation is not None else {}


def advise(case: Case) -> Advice | None:
    """The first advice that the figures call for; None where they call for none, or are too few."""
    if case.verdict.state in {WatchState.UNSEEN, WatchState.IDLE}:
        return None
    return next((advice for rule in _RULES if (advice := rule(case)) is not None), None)


def _off(case: Case) -> Advice | None:
    if case.verdict.state is not WatchState.OFF:
        return None
    if case.profile is not None and case.profile.speculation is None:
        return None
    return Advice(
        "start_with_speculation", "start it with a profile that has a `speculation` block: `specserve up`"
    )


def _dead(case: Case) -> Advice | None:
    if case.verdict.state is not WatchState.COLLAPSED:
        return None
    until = "until then `specserve up --baseline` serves the same text without the cost"
    if (case.since_start.mean_acceptance_length or 0) > 1.2:
        return Advice(
            "restart",
            f"it worked before: restart the server, and if it dies again try another draft; {until}",
        )
    return Advice(
        "check_draft",
        "it never worked since the server's start: the draft or head does not belong to this target "
        f"(`specserve check` compares them); {until}",
    )


def _undrafted(case: Case) -> Advice | None:
    share = case.seen.undrafted_share
    if share is None or share < _UNDRAFTED_AT:
        return None
    text = f"{share:.0%} of the output tokens came without a draft"
    if case.method in _FREE_DRAFTS:
        return Advice(
            "nothing_to_copy",
            f"{text}: `{case.method}` found nothing to copy there; a draft model or head would draft",
        )
    length = case.seen.counters.request_prompt_tokens.quantile(0.95)
    prompts = f"; 95 % of the prompts are under {length:,.0f} tokens" if length is not None else ""
    reason = "the context goes beyond the draft's `max_model_len`"
    if "num_speculative_tokens_per_batch_size" in case.key:
        reason = f"the batch-size schedule drafts nothing there, or {reason}"
    return Advice("context", f"{text}: {reason}{prompts}")


def _full(case: Case) -> Advice | None:
    count, usage = case.seen.counters.preemptions, case.seen.most_kv_cache_usage
    if not count or (usage is not None and usage < _FULL_AT):
        return None
    requests = f"{count:,} request{'s were' if count > 1 else ' was'}"
    return Advice(
        "kv_cache",
        f"{requests} preempted, as the KV cache is full, and their work is done again: lower `max_num_seqs` or "
        "`max_model_len`, or give the draft's memory to the cache (`specserve check` shows both)",
    )


def _crowded(case: Case) -> Advice | None:
    seen = case.seen
    per_step = seen.running_requests * (1 + (seen.mean_draft_tokens or 0))
    hardware = case.profile.hardware if case.profile is not None else None
    limit = _TOKENS_PER_STEP_CPU if hardware and hardware.accelerator == "cpu" else _TOKENS_PER_STEP
    promised = [item.concurrency for item in case.profile.expect if item.concurrency] if case.profile else []
    schedule = "a `num_speculative_tokens_per_batch_size` schedule drafts less when it is full"
    if promised and seen.running_requests > max(promised) + 0.5:
        return Advice(
            "concurrency",
            f"{seen.running_requests:.0f} requests run in parallel, but the profile promises for {max(promised)}: "
            f"each further request reduces the gain; `specserve bench` measures it there, and {schedule}",
        )
    if seen.mean_draft_tokens is None or per_step < limit:
        return None
    return Advice(
        "concurrency",
        f"a step verifies {per_step:.0f} tokens ({seen.running_requests:.0f} requests): from about {limit} on a "
        f"draft token is no longer nearly free; `specserve bench` measures whether it pays there, and {schedule}",
    )


def _shorter(case: Case) -> Advice | None:
    """Positions at the end that add less than they cost."""
    seen = case.seen
    if not _tells_positions(seen) or case.method in _DRAFTS_AT_ONCE:
        return None
    worth, tokens = 0, 1.0
    for position, share in enumerate(seen.per_position, start=1):
        if share / tokens >= WORTH:
            worth = position
        tokens += share
    last = seen.num_speculative_tokens
    if worth in (0, last):
        return None
    added = sum(seen.per_position[worth:])
    which = f"position {last} adds" if worth + 1 == last else f"positions {worth + 1} to {last} add"
    return Advice(
        "fewer_tokens",
        f"{which} {added:.2f} tokens to a step, {added / tokens:.0%} of them, which is less than drafting and "
        f"verifying costs: try `num_speculative_tokens: {worth}`",
    )


def _temperature(case: Case) -> Advice | None:
    promised = [item.temperature or 0.0 for item in case.profile.expect] if case.profile else []
    drafts_greedily = case.method is not None and case.key.get("draft_sample_method", "greedy") == "greedy"
    if case.verdict.state not in {WatchState.MISSED, WatchState.FALLEN} or not drafts_greedily:
        return None
    if case.method in _FREE_DRAFTS or max(promised, default=0.0) <= 0:
        return None
    return Advice(
        "temperature",
        f"traffic at temperature {max(promised):g} accepts greedy drafts less often: "
        "`draft_sample_method: probabilistic` drafts as the target samples",
    )


def _repeating(case: Case) -> Advice | None:
    rate, interval = case.seen.acceptance_rate, case.seen.acceptance_rate_interval
    if (
        rate is None
        or interval is None
        or interval[0] < _REPEATING_AT
        or case.seen.num_speculative_tokens < 2
    ):
        return None
    return Advice(
        "repetition",
        f"{rate:.0%} of the drafts are accepted, which natural text seldom shows: look whether the output "
        "repeats itself",
    )


def _longer(case: Case) -> Advice | None:
    """A last position that is still accepted nearly whenever it is reached."""
    seen = case.seen
    if not _tells_positions(seen) or not seen.conditional:
        return None
    share, given = seen.per_position[-1], seen.conditional[-1]
    if given is None or given < _MORE_AT or share / (seen.mean_acceptance_length or 1) < 2 * WORTH:
        return None
    return Advice(
        "more_tokens",
        f"position {seen.num_speculative_tokens}, the last one, is accepted in {share:.0%} of the steps: a larger "
        "`num_speculative_tokens` may yield more; `specserve bench` tells",
    )


def _fallen(case: Case) -> Advice | None:
    if case.verdict.state is not WatchState.FALLEN:
        return None
    return Advice(
        "traffic",
        "other traffic (language, length, temperature, template) is the usual reason: `specserve bench` with your own "
        "prompts tells whether it still pays",
    )


def _longer_window(case: Case) -> Advice | None:
    """For a full window that is too short for this traffic."""
    seen, span_s, factor = case.seen, case.span_s, case.verdict.traffic_factor
    if case.verdict.state is not WatchState.UNDECIDED or span_s is None or seen.window_s < 0.9 * span_s:
        return None
    if factor is None or factor > _LONGEST_FACTOR:
        return None
    minutes = math.ceil(1.2 * factor * seen.window_s / 60)
    return Advice(
        "longer_window", f"at this traffic a verdict takes about {minutes} min: `--window {minutes}m`"
    )


def _tells_positions(seen: WatchFigures) -> bool:
    """Whether there is enough traffic, and K the same in each step: else later positions read low for that reason."""
    is_enough = (
        seen.acceptance.drafts >= _POSITION_DRAFTS and seen.counters.finished_requests >= _POSITION_REQUESTS
    )
    varies = seen.mean_draft_tokens is None or seen.mean_draft_tokens < 0.98 * seen.num_speculative_tokens
    return is_enough and not varies


_RULES: tuple[Callable[[Case], Advice | None], ...] = (
    _off,
    _dead,
    _undrafted,
    _full,
    _crowded,
    _temperature,
    _fallen,
    _shorter,
    _repeating,
    _longer,
    _longer_window,
)
