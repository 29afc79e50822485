"""From what was measured to every K at every load: length, step time, rate, with what each rests on. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specserve.measure.bench.result import Interval
from specserve.measure.tune import choose, steptime, walk
from specserve.measure.tune.choose import share_within
from specserve.measure.tune.observe import Observed
from specserve.measure.tune.result import Row
from specserve.measure.tune.steptime import StepModel, Timed
from specserve.measure.tune.walk import Steps, length_interval
from specserve.metrics.counters import total_acceptance
from specserve.profile.schema import Expectation

_TIMES = 300
STEP_ERROR = 0.04
"""Of a step time between measured points, as a share: what is added to a speedup's bounds."""
COUNTERS_LOW = 0.18
"""By how much what counters alone say of a smaller K may be too low, as a share."""
STEP_ERROR_ALONE = 0.08
"""Where one K was measured at a load, and no other."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of one candidate and of the server without speculation, for one workload."""

    candidate: str
    plain: Mapping[int, Observed]
    """Without speculation, by concurrency."""
    drafted: Sequence[Observed]
    others: Sequence[Timed] = ()
    """Step times at loads between, of whatever workload."""
    most_tokens: int = 1
    follows_schedule: bool = True
    limits: Mapping[int, Expectation] = field(default_factory=dict)
    """Of the profile, by concurrency."""
    prefills: float = 1.0
    """What prefills take where a draft has its own, over what they take without; at least 1."""


def model(measured: Measured) -> StepModel | None:
    """The step times of one candidate; None where no step of it could be timed, or none without speculation."""
    if not any(seen.step_s for seen in measured.plain.values()):
        return None
    if not any(seen.step_s for seen in measured.drafted):
        return None
    points = [Timed(load, 0, seen.step_s) for load, seen in measured.plain.items() if seen.step_s]
    points += [Timed(seen.concurrency, seen.tokens, seen.step_s) for seen in measured.drafted if seen.step_s]
    return steptime.fit([*points, *measured.others])


def prefills(every: Sequence[Measured]) -> float:
    """What prefills take with this candidate, over what they take without: the median over all points, 1 at least."""
    ratios = [
        seen.held_up_s / measured.plain[seen.concurrency].held_up_s
        for measured in every
        for seen in measured.drafted
        if seen.concurrency in measured.plain and measured.plain[seen.concurrency].held_up_s > 0
    ]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


def rows(measured: Measured, *, steps: StepModel) -> list[Row]:
    """Every K up to what was measured, at every load that was measured without speculation."""
    found = []
    lengths = {tokens: _length(measured, tokens) for tokens in range(1, measured.most_tokens + 1)}
    for load in sorted(measured.plain):
        for tokens in range(1, measured.most_tokens + 1):
            length = lengths[tokens]
            if length is not None:
                found.append(_row(measured, load, tokens, length, steps))
    return found


def _length(measured: Measured, tokens: int) -> Interval | None:
    """Tokens a step, from the steps that every request took, else from the counters; None: unknown."""
    requests = _requests(measured)
    if requests:
        return length_interval(requests, tokens=tokens, times=_TIMES)
    most = max((seen.tokens for seen in measured.drafted), default=0)
    found = [seen for seen in measured.drafted if seen.tokens == most and seen.counted is not None]
    counted = total_acceptance(seen.counted for seen in found if seen.counted is not None)
    told = walk.length(tokens=tokens, measured_with=most, counted=counted) if found else None
    if told is None:
        return None
    # counters also count what was accepted behind the end of an answer
    sent = math.fsum(len(seen.first_s) * (seen.output_tokens - 1) for seen in found)
    value = max(1.0, told.value * min(1.0, sent / (counted.drafts + counted.accepted_tokens)))
    return Interval(value, value, min(tokens + 1.0, value * (1 + COUNTERS_LOW)))


def _requests(measured: Measured) -> list[Steps]:
    """Those with the most draft tokens: what was offered less says nothing of more."""
    most = max((seen.tokens for seen in measured.drafted), default=0)
    return [each for seen in measured.drafted if seen.tokens == most for each in seen.requests]


def _row(measured: Measured, load: int, tokens: int, length: Interval, steps: StepModel) -> Row:
    plain = measured.plain[load]
    seen = next(
        (each for each in measured.drafted if (each.concurrency, each.tokens) == (load, tokens)), None
    )
    step_s = steps.at(load, tokens)
    plain_s = steps.at(load, 0)
    held_up_s = _held_up_s(measured, load)
    rate = _rate(plain, mean_length=length.value, step_s=step_s, held_up_s=held_up_s * measured.prefills)
    speedup = rate / _rate(plain, mean_length=1.0, step_s=plain_s, held_up_s=held_up_s)
    spread = _spread(measured, load, length, is_timed=seen is not None and seen.step_s is not None)
    return Row(
        candidate=measured.candidate,
        workload=plain.workload,
        temperature=plain.temperature,
        concurrency=load,
        tokens=tokens,
        mean_length=length,
        length_basis=_basis(measured, tokens),
        step_ms=step_s * 1000,
        step_basis="measured" if seen is not None and seen.step_s is not None else "predicted",
        break_even=choose.break_even(step_s, plain_step_s=plain_s),
        tpot_ms=_tpot_s(measured, load, mean_length=length.value, step_s=step_s, tokens=tokens) * 1000,
        plain_tpot_ms=_tpot_s(measured, load, mean_length=1.0, step_s=plain_s, tokens=0) * 1000,
        tokens_per_s=plain.tokens_per_s * speedup,
        speedup=Interval(speedup, speedup * math.exp(-spread), speedup * math.exp(spread)),
        measured_tokens_per_s=seen.tokens_per_s if seen is not None else None,
        measured_tpot_ms=_mean_ms(seen.tpot_s) if seen is not None else None,
        within_limits=_within(
            measured, load, tokens, later_s=(step_s - plain_s) / 2 if load > 1 else 0.0, step_s=step_s
        ),
        plain_within_limits=share_within(
            measured.limits.get(load), tpots_s=plain.tpot_s, ttfts_s=plain.first_s
        ),
    )


def plain_rows(measured: Measured) -> list[Row]:
    """The server without speculation as K = 0 at every load: all of it measured."""
    found = []
    for load, seen in sorted(measured.plain.items()):
        measured_ms = _mean_ms(seen.tpot_s)
        if seen.step_s is None or measured_ms is None:
            continue
        within = share_within(measured.limits.get(load), tpots_s=seen.tpot_s, ttfts_s=seen.first_s)
        found.append(
            Row(
                candidate="",
                workload=seen.workload,
                temperature=seen.temperature,
                concurrency=load,
                tokens=0,
                mean_length=Interval(1.0, 1.0, 1.0),
                length_basis="measured",
                step_ms=seen.step_s * 1000,
                step_basis="measured",
                break_even=1.0,
                tpot_ms=measured_ms,
                plain_tpot_ms=measured_ms,
                tokens_per_s=seen.tokens_per_s,
                speedup=Interval(1.0, 1.0, 1.0),
                measured_tokens_per_s=seen.tokens_per_s,
                measured_tpot_ms=measured_ms,
                within_limits=within,
                plain_within_limits=within,
            )
        )
    return found


def _mean_ms(seconds: Sequence[float]) -> float | None:
    return math.fsum(seconds) / len(seconds) * 1000 if seconds else None


def _basis(measured: Measured, tokens: int) -> str:
    if not _requests(measured):
        return "counters"
    return "measured" if tokens == measured.most_tokens else "stitched"


def _tpot_s(measured: Measured, load: int, *, mean_length: float, step_s: float, tokens: int) -> float:
    """Seconds of each token after the first: its share of a step, and of the prefills of others."""
    return choose.time_per_token_s(mean_length, step_s=step_s) + _waiting_s(measured, load, tokens=tokens)


def _waiting_s(measured: Measured, load: int, *, tokens: int) -> float:
    """Seconds of each token after the first that a request waits for the prefills of others.

    Of what holds a request up, the share that comes after its first token: without speculation requests that began
    together end together, so that the next ones mostly wait for each other; with it they do not.
    """
    plain = measured.plain[load]
    held_up_s = _held_up_s(measured, load) * (measured.prefills if tokens else 1.0)
    share = _later_share(
        [each for each in measured.drafted if tokens and each.concurrency == load] or [plain]
    )
    return held_up_s * share / (plain.output_tokens - 1) if plain.output_tokens > 1 else 0.0


def _later_share(seen: Sequence[Observed]) -> float:
    """Of what holds a request up, what comes after its first token, 0 to 1."""
    held_up_s = math.fsum(each.held_up_s for each in seen)
    later_s = math.fsum(
        max(0.0, each.held_up_s - statistics.fmean(each.first_s)) for each in seen if each.first_s
    )
    return later_s / held_up_s if held_up_s > 0 else 0.0


def _held_up_s(measured: Measured, load: int) -> float:
    """What prefills hold a request up without speculation: the least that was seen, as neighbours only add to it."""
    drafted = [seen.held_up_s / measured.prefills for seen in measured.drafted if seen.concurrency == load]
    return min([measured.plain[load].held_up_s, *drafted])


def _rate(plain: Observed, *, mean_length: float, step_s: float, held_up_s: float) -> float:
    """Of a closed loop."""
    return choose.closed_loop_tokens_per_s(
        plain.output_tokens,
        mean_length=mean_length,
        step_s=step_s,
        held_up_s=held_up_s,
        concurrency=plain.concurrency,
    )


def _spread(measured: Measured, load: int, length: Interval, *, is_timed: bool) -> float:
    """Half the width of the logarithm of a speedup: of the length by requests, and of the step time."""
    known = length.low > 0 and math.isfinite(length.high)
    by_length = math.log(length.high / length.low) / 2 if known else math.log(2.0)
    several = sum(each.concurrency == load for each in measured.drafted) > 0
    by_step = 0.02 if is_timed else STEP_ERROR if several and measured.follows_schedule else STEP_ERROR_ALONE
    return math.hypot(by_length, by_step)


def _within(measured: Measured, load: int, tokens: int, *, step_s: float, later_s: float) -> float | None:
    """Share within the profile's limits: times per token by each request's own acceptance; first tokens as without
    speculation, later by what longer steps keep them waiting.
    """
    return share_within(
        measured.limits.get(load),
        tpots_s=[
            step_s * each.steps_with(tokens) / each.tokens + _waiting_s(measured, load, tokens=tokens)
            for each in _requests(measured)
            if each.tokens
        ],
        ttfts_s=[first_s + later_s for first_s in measured.plain[load].first_s],
    )


def per_position(measured: Measured) -> tuple[float, ...]:
    """The share of steps with K_max drafts that accepted 1, 2, … tokens or more."""
    steps = [
        took
        for each in _requests(measured)
        for took, offered in zip(each.accepted, each.drafted, strict=True)
        if offered == measured.most_tokens
    ]
    if not steps:
        return ()
    return tuple(
        sum(took >= place for took in steps) / len(steps) for place in range(1, measured.most_tokens + 1)
    )
