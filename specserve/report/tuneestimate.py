"""What `tune --estimate` says."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specserve.measure.tune.estimate import LONGEST, Estimate, EstimatedPoint
from specserve.report.page import Block, Document, Items, Paragraph, Section, Verbatim
from specserve.report.serializer import json_document, json_values
from specserve.report.text import Column, Table, low_to_high, number, with_spread

_VERDICTS = {"fit": "fits", "tight": "tight", "does_not_fit": "DOES NOT FIT"}
_MARKS = {True: " ", None: "?", False: "*"}
_LEGENDS = {
    "*": "more requests than the KV cache holds: some would wait, and these figures are not reached",
    "?": "perhaps more requests than the KV cache holds",
}
_LENGTHS = (
    "needed and assumed: tokens per step, its own token included; needed: from which mean acceptance length "
    "speculation pays (break-even)"
)


def estimate_json(found: Estimate) -> str:
    """Returns the estimate for scripts; `basis` is `estimated` throughout."""
    return json_document(json_values(found, digits=6))


def estimate_document(found: Estimate, *, file: str) -> Document:
    """Returns the estimate for a person. `file`: the profile as it was named."""
    assumed, count = found.assumed, found.count * found.nodes
    chance = f"{assumed.acceptance:g} of each draft token, given the one before"
    if assumed.mean_acceptance_length is not None:
        chance = (
            f"{assumed.acceptance:.2f} of each draft token, from {assumed.mean_acceptance_length:.2f} tokens a step "
            f"at K = {assumed.mean_acceptance_length_at}"
        )
    marks = {_MARKS[point.fits_kv_cache] for point in found.points}
    most = f"{found.memory_bound_up_to_tokens:,.0f} tokens"
    ridge = f"a step stays bound by memory up to about {most}, draft tokens included"
    return Document(
        "estimate",
        found.profile,
        [
            Paragraph(
                f"Estimated, nothing was measured: {found.method} on {count}x {found.accelerator}, chance {chance}, "
                f"{assumed.context_tokens:,.0f} tokens of context a request"
            ),
            Paragraph(f"Memory: {_memory(found, file)}"),
            _table(found.points),
            Items([*((mark, text) for mark, text in _LEGENDS.items() if mark in marks), ("", _LENGTHS)]),
            *_setting(found),
            Section("Basis", [Items([("-", line) for line in (*found.rests_on, ridge)])]),
        ],
    )


def _memory(found: Estimate, file: str) -> str:
    """The verdict, and how many requests run at once."""
    memory = found.memory
    words = [_VERDICTS[memory.verdict] + (f": {memory.reason}" if memory.reason else "")]
    if memory.verdict == "does_not_fit":
        words.append("no request could be served")
    elif memory.requests_at_once is not None:
        low, high = (f"{value:,.0f}" for value in (memory.requests_at_once.low, memory.requests_at_once.high))
        words.append(f"{low_to_high(low, high, between=' to ')} such requests fit in parallel")
    if memory.verdict != "fit":
        nodes = f"{found.nodes}x" if found.nodes > 1 else ""
        machine = f"{nodes}{found.count}x{found.accelerator}"
        words.append(f"`specserve check {file} --assume {machine}` shows what to change")
    return "; ".join(words)


def _table(points: tuple[EstimatedPoint, ...]) -> Table:
    names = ("requests", "K", "speedup", "tokens/s", "TPOT, ms", "step, ms", "needed", "assumed")
    rows = [
        (
            f"{point.concurrency}{_MARKS[point.fits_kv_cache]}",
            str(point.num_speculative_tokens),
            with_spread(point.speedup, unit="x")
            if point.num_speculative_tokens
            else f"K = 1: {point.speedup.value:.2f}x",
            f"{point.output_tokens_per_s:,.0f}",
            number(point.tpot_ms, 1),
            number(point.step_ms, 1),
            number(point.break_even_mean_acceptance_length),
            number(point.assumed_mean_acceptance_length),
        )
        for point in points
    ]
    return Table([Column(name) for name in names], rows, keys=2)


def _setting(found: Estimate) -> Iterator[Block]:
    """What to write into the profile, why it is one K, and what it gives."""
    loads, most = found.served, found.largest_num_speculative_tokens
    words = []
    if not found.num_speculative_tokens:
        words.append(
            "Speculation gains nothing at any of these loads: a step with drafts costs more than it brings."
        )
    else:
        keys = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
        setting = {key: value for key in keys if (value := getattr(found, key)) is not None}
        yield Verbatim("\n".join(f"{key}: {json.dumps(value)}" for key, value in setting.items()))
        if len(setting) == 1 and len({load.num_speculative_tokens for load in loads}) > 1:
            why = found.no_schedule_because or "a schedule by load would gain next to nothing"
            words.append(f"One K for all loads: {why}.")
        gains = [
            f"{load.recommended.speedup.value:.2f}x at {load.concurrency}"
            for load in loads
            if load.recommended
        ]
        words.append(f"With that, by concurrency: {', '.join(gains)}.")
        if found.recommended_mean_speedup is not None and found.recommended_mean_speedup < 1:
            mean = f"Over these loads that is {found.recommended_mean_speedup:.2f}x in the mean"
            words.append(f"{mean}: better without speculation, unless the load stays low enough.")
        none = [load.concurrency for load in loads if not load.num_speculative_tokens]
        if none and none == [load.concurrency for load in loads][-len(none) :]:
            words.append(f"From concurrency {none[0]} on, no K gains anything by this estimate.")
        elif none:
            *others, last = map(str, none)
            listed = f"{', '.join(others)} and {last}" if others else last
            words.append(f"At concurrency {listed} no K gains anything by this estimate.")
    if any(load.num_speculative_tokens == most for load in loads) and most < LONGEST:
        more = f"`--k-max {min(LONGEST, 2 * most)}` tries more"
        words.append(f"K = {most} is the largest K that was tried: {more}.")
    yield Paragraph(" ".join(words))
