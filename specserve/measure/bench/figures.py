"""From passes at one point to figures: those of a variant, and the speedup of two."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import median_high

from specserve.measure.bench.blocks import Pass, paired
from specserve.measure.bench.result import Figures, Point, Quantiles
from specserve.measure.intervals import LogEstimate, RateSample, quantile, ratio
from specserve.metrics.counters import total_acceptance

SATURATED = 0.85
"""Share of a core above which the load generator, one thread, may hold the server up."""
MAX_FAILED = 0.02


def figures(passes: Sequence[Pass]) -> Figures | None:
    """Return all passes together; None if no request was answered."""
    good = [request for each in passes for request in each.answered]
    seconds = sum(each.duration_s for each in passes)
    tokens = sum(request.output_tokens for request in good)
    if not good or not tokens or seconds <= 0:
        return None
    parts = [each.acceptance for each in passes if each.acceptance]
    waited = [each.queue_s for each in passes if each.queue_s is not None]
    return Figures(
        requests=len(good),
        blocks=len(passes),
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        ttft_ms=_quantiles(request.ttft_s for request in good),
        tpot_ms=_quantiles(value for request in good if (value := request.tpot_s) is not None),
        e2e_ms=_quantiles(request.latency_s for request in good),
        acceptance=total_acceptance(parts) if parts else None,
        failed_requests=sum(len(each.requests) for each in passes) - len(good),
        queue_ms=1000 * sum(waited) / len(good) if waited else None,
        preemptions=sum(each.preemptions for each in passes),
    )


def _quantiles(seconds: Iterable[float]) -> Quantiles:
    """Return the quantiles in milliseconds; zeros if there is nothing."""
    values = [1000 * value for value in seconds] or [0.0]
    return Quantiles(*(quantile(values, at) for at in (0.5, 0.9, 0.99)))


def invalid_reason(passes: Sequence[Pass]) -> str | None:
    """Return why a cell of these passes counts for nothing, in one clause; None if it counts."""
    if not passes:
        return "it was not measured"
    requests = [request for each in passes for request in each.requests]
    failed = [request for request in requests if not request.ok]
    if len(failed) > MAX_FAILED * len(requests):
        why = next((request.error for request in failed if request.error), "no reason given")
        end = why if len(why) <= 160 else f"…{why[-160:]}"
        return f"{len(failed)} of {len(requests)} requests failed: {end}"
    busy = median_high(each.client_cpu for each in passes)
    if busy > SATURATED:
        return f"the load generator was busy for {busy:.0%} of the time: it slowed the server down"
    return None


def token_samples(
    passes: Sequence[Pass], prompts: Collection[str] | None = None
) -> list[RateSample]:
    """Return output tokens and seconds by request: those of a pass are dealt by latency."""
    found = []
    for each in passes:
        good = each.answered
        latencies_s = sum(request.latency_s for request in good)
        for request in good:
            if prompts is not None and request.prompt not in prompts:
                continue
            part = request.latency_s / latencies_s if latencies_s else 1 / len(good)
            seconds = each.duration_s * part
            found.append(sample(each, request.output_tokens, seconds, request.prompt))
    return found


def speedup(
    passes: Sequence[Pass],
    *,
    variant: str,
    against: str,
    at: Point,
    prompts: Collection[str] | None = None,
) -> LogEstimate | None:
    """Return output tokens/s of one variant over those of another, by the blocks that both have.

    `prompts`: only these. None if one of them has nothing.
    """
    mine, theirs = paired(passes, variant, against, at)
    between = sum(each[0].launch_spread ** 2 for each in (mine, theirs) if each)
    samples = token_samples(mine, prompts)
    return ratio(samples, against=token_samples(theirs, prompts), between=between)


def sample(done: Pass, amount: float, cost: float, prompt: str = "all") -> RateSample:
    """Return what a pass, or the answer to one of its prompts, adds to a rate."""
    return RateSample(prompt, str(done.block), amount, cost, launch=str(done.launch))
