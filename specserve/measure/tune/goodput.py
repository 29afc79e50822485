"""What acceptance and step times make of each other: tokens/s, latency, break-even. Pure formulas; measures nothing."""

from __future__ import annotations

from specserve.measure.tune.walk import geometric

LONGEST = 64
"""No more draft tokens are looked at."""


def tokens_per_s(concurrency: int, *, mean_length: float, step_s: float) -> float:
    """Output tokens/s of so many requests that decode together."""
    return concurrency * mean_length / step_s


def time_per_token_s(mean_length: float, *, step_s: float) -> float:
    """Seconds from one output token of a request to its next, on average."""
    return step_s / mean_length


def break_even(step_s: float, *, plain_step_s: float) -> float:
    """The mean acceptance length from which speculation pays: how many plain steps its step takes."""
    return step_s / plain_step_s


def speedup(mean_length: float, *, step_s: float, plain_step_s: float) -> float:
    """Of decoding, over the same server without speculation."""
    return mean_length * plain_step_s / step_s


def whole_speedup(decoding: float, *, prefill_share: float) -> float:
    """Of a whole request, where a share (0 to 1) of its time without speculation is prefill, which stays."""
    return 1.0 / (prefill_share + (1.0 - prefill_share) / decoding)


def request_s(output_tokens: float, *, mean_length: float, step_s: float, held_up_s: float) -> float:
    """Seconds of one request: its steps, and what prefills hold it up, its own and those of the others.

    In a closed loop each of the others begins once while it runs, however fast they all are.
    """
    return held_up_s + (output_tokens - 1) / mean_length * step_s


def closed_loop_tokens_per_s(
    output_tokens: float, *, mean_length: float, step_s: float, held_up_s: float, concurrency: int
) -> float:
    """Output tokens/s where a new request is sent whenever one ends."""
    each_s = request_s(output_tokens, mean_length=mean_length, step_s=step_s, held_up_s=held_up_s)
    return concurrency * output_tokens / each_s


def ideal_speedup(alpha: float, *, tokens: int, cost: float) -> float:
    """Where each draft token is accepted with chance `alpha` and verifying costs no more than one token.

    `cost`: seconds of a draft step over seconds of a target step (Leviathan et al. 2023, theorem 3.8).
    """
    return geometric(alpha, tokens=tokens) / (tokens * cost + 1.0)


def ideal_tokens(alpha: float, *, cost: float) -> int:
    """The best number of draft tokens by that formula; 0 where none is faster than none."""
    best = max(range(LONGEST + 1), key=lambda tokens: ideal_speedup(alpha, tokens=tokens, cost=cost))
    return best if ideal_speedup(alpha, tokens=best, cost=cost) > 1.0 else 0
