"""What keeps the speedup from K + 1: acceptance, draft, verification, prefill, memory; each with its number. Pure.

All tokens accepted, and drafts and their verification free, a step would give K + 1 tokens. The logarithm of what is
missing from that is dealt to its causes, so that their shares add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specserve.measure.tune.choose import LEAST_SPEEDUP
from specserve.measure.tune.result import Cause, Row
from specserve.measure.tune.steptime import StepModel

MOVES = {
    "acceptance": "a draft closer to the target (same family, distilled on this traffic), a lower temperature, or "
    "probabilistic drafts above temperature 0",
    "draft cost": "a smaller draft, a head (EAGLE, MTP) or ngram, or a smaller K",
    "verification cost": "a smaller K, fewer requests at once, or an accelerator with more FLOP/s for its bandwidth",
    "prefill": "prefix caching or shorter prompts: speculation speeds up decoding alone",
    "memory": "a smaller draft, a smaller K, or more memory for the KV cache",
}

_IMPLAUSIBLE = 0.95
"""Plain steps that a step with more tokens cannot take less than, but for drift."""


def causes(row: Row, *, steps: StepModel, kv_tokens: tuple[int, int] | None = None) -> tuple[Cause, ...]:
    """What limits one K at one load, the largest first. `kv_tokens`: of the cache with and without speculation."""
    length = row.mean_length.value if row.mean_length else 1.0
    load, tokens = row.concurrency, row.tokens
    plain_s, step_s = steps.at(load, 0), row.step_ms / 1000
    verify_s = min(max(step_s - steps.draft_s(load, tokens), plain_s), step_s)
    decoding = length / row.break_even
    lost = {
        "acceptance": math.log((tokens + 1) / length),
        "verification cost": math.log(verify_s / plain_s),
        "draft cost": math.log(step_s / verify_s),
        "prefill": max(0.0, math.log(decoding / row.speedup.value)),
    }
    whole = math.fsum(max(0.0, value) for value in lost.values()) or 1.0
    told = {
        "acceptance": f"{length:.2f} of {tokens + 1} tokens a step",
        "verification cost": _verification(load * (tokens + 1), verify_s / plain_s),
        "draft cost": f"{tokens} draft steps take {(step_s - verify_s) / step_s:.0%} of a step, "
        f"{(step_s - verify_s) / tokens / plain_s:.2f} plain steps each",
        "prefill": f"decoding alone is {decoding:.2f}x, whole requests are {row.speedup.value:.2f}x",
    }
    found = [
        Cause(name, max(0.0, value) / whole, told[name], MOVES[name])
        for name, value in sorted(lost.items(), key=lambda item: -item[1])
    ]
    return (*found, *_memory(kv_tokens))


def _verification(tokens: int, plain_steps: float) -> str:
    told = f"verifying {tokens} tokens takes {plain_steps:.2f} plain steps"
    if plain_steps < _IMPLAUSIBLE:
        told += (
            ": less than one, so the machine was slower without speculation, or it is slow with single tokens"
        )
    return told


def _memory(kv_tokens: tuple[int, int] | None) -> Sequence[Cause]:
    """What the draft takes of the KV cache: it costs where requests wait for room, and nothing below that."""
    if kv_tokens is None or not kv_tokens[1]:
        return ()
    drafting, plain = kv_tokens
    told = f"KV cache of {drafting:,} tokens instead of {plain:,} ({drafting / plain - 1:+.0%})"
    return (Cause("memory", None, told, MOVES["memory"]),)


def why_none(rows: Sequence[Row], *, steps: StepModel) -> str | None:
    """Why no K gains, where one cause alone explains it; None where there is a gain, or no single cause."""
    if not rows or max(row.speedup.value for row in rows) >= LEAST_SPEEDUP:
        return None
    row = max(rows, key=lambda each: each.speedup.value)
    plain_s, load = steps.at(row.concurrency, 0), row.concurrency
    each_s = (steps.at(load, row.tokens) - steps.verify_s(load, row.tokens)) / row.tokens
    length = row.mean_length.value if row.mean_length else 1.0
    if each_s >= 0.8 * plain_s:
        accepted = f"{(length - 1) / row.tokens:.0%} of the draft tokens are accepted"
        return f"a draft step costs {each_s / plain_s:.2f} steps of the target: no gain is possible, though {accepted}"
    if length < 1.2:
        return (
            f"next to nothing is accepted: {length:.2f} tokens a step, {row.break_even:.2f} would be needed"
        )
    return None
