"""What a tune found, as text, a page and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from specserve.measure.tune.result import Confirmed, Row, TuneResult
from specserve.report.charts import Chart, Series, Value, clean_value, other_colour
from specserve.report.numbers import NONE, moment, number, took, with_spread
from specserve.report.page import (
    Block,
    Card,
    Cards,
    Charts,
    Details,
    Document,
    Items,
    Paragraph,
    Section,
    Verbatim,
    html_page,
)
from specserve.report.serializer import json_document, json_values, picked
from specserve.report.table import Column, Table

_MISS = 0.10
"""The share by which a prediction may be off before the report warns."""
_SETTINGS = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "draft_sample_method")
_LEGEND = (
    "m: measured, at full load; p: predicted from two launches, without and with speculation; "
    "p~m: predicted and measured; *: chosen; a share in brackets: the share of requests within the profile's limits"
)


def text(found: TuneResult, *, stream: TextIO | None = None) -> str:
    """Returns the report for a person; coloured if `stream` (default stdout) is a terminal."""
    return tune_document(found).text(stream or sys.stdout).rstrip()


def tune_html(found: TuneResult) -> str:
    """Returns the page."""
    return html_page(tune_document(found))


def tune_document(found: TuneResult) -> Document:
    """Returns the whole report: the choice and its confirmation first, then every K at every load."""
    machine = found.host.get("accelerator", found.platform)
    vllm = found.versions.get("vllm", "of unknown version")
    lead = (
        f"{machine}, vLLM {vllm}, model runner {found.runner.upper()}, {moment(found.created)}, "
        f"{took(found.duration_s)}, {found.launches} {'launch' if found.launches == 1 else 'launches'}"
    )
    blocks: list[Block] = [Paragraph(lead, is_muted=True), *_choice(found), *_confirmed(found)]
    for place in dict.fromkeys((row.candidate, row.workload, row.temperature) for row in found.rows):
        blocks.append(_place(found, place))
    blocks.append(Paragraph(_LEGEND, is_muted=True))
    if found.causes:
        blocks.append(_causes(found))
    left_out = [
        ("not measured", f"{each.name}: {each.left_out}") for each in found.candidates if each.left_out
    ]
    blocks.append(Items([*left_out, *(("note", note) for note in found.notes)]))
    most = max((each.measured_with or 0 for each in found.candidates if each.left_out is None), default=0)
    blocks.append(Paragraph(f"Nothing is known about K above {most}."))
    return Document("tune", found.name, blocks)


def _choice(found: TuneResult) -> Iterator[Block]:
    choice = found.choice
    if not choice.speculates:
        yield Cards([Card("Choice", "Run without speculation", [choice.reason])])
        return
    speculation = choice.speculation or {}
    yield Cards(
        [Card("Choice", str(choice.candidate), [f"by {found.objective}", f"predicted {choice.reason}"])]
    )
    lines = [f"{name}: {json.dumps(speculation[name])}" for name in _SETTINGS if name in speculation]
    yield Verbatim("\n".join(lines))
    yield Items([line for load, k in sorted(choice.by_load.items()) for line in _chosen(found, load, k)])


def _chosen(found: TuneResult, load: int, tokens: int) -> Iterator[tuple[str, str]]:
    """What the choice gives at one load."""
    if not tokens:
        mine = next((each for each in found.candidates if each.name == found.choice.candidate), None)
        cost = (mine.zero_cost if mine else None) or 1.0
        yield f"concurrency {load}", f"K = 0: {cost:.2f}x of a server without speculation (its step measured)"
    for row in found.rows:
        if (row.candidate, row.concurrency, row.tokens) == (found.choice.candidate, load, tokens):
            gain = f"predicted speedup {with_spread(row.speedup, unit='x')}"
            if found.objective == "tpot":
                gain = f"{row.tpot_ms:.1f} ms per token predicted, {row.plain_tpot_ms:.1f} without"
            needed = "any length pays" if row.break_even <= 1 else f"pays from {row.break_even:.2f}"
            if math.isinf(row.break_even):
                needed = "no length pays"
            length = f"{row.mean_length.value if row.mean_length else 0.0:.2f} tokens per step"
            words = f"{found.place(row, lead='T = ')}: K = {tokens}, {gain}; {length}, {needed}"
            yield f"concurrency {load}", words


def _confirmed(found: TuneResult) -> Iterator[Block]:
    if not found.confirmed:
        return
    how = "turn by turn with" if found.is_interleaved else "after"
    caption = f"Confirmed on other prompts, {how} the server without speculation (measured, 95 % interval)"
    head = (
        Column("workload", "name"),
        Column("concurrency"),
        Column("speedup"),
        Column("verdict", "verdict"),
    )
    more = (Column("predicted"), Column("missed by"), Column("within limits"), Column("without"))
    rows = [_confirmation(each, found) for each in found.confirmed]
    blocks: list[Block] = [Table((*head, *more), rows)]
    missed = [each for each in found.confirmed if abs(each.miss) > _MISS]
    if missed:
        words = f"the model missed {len(missed)} of {len(rows)} points by more than {_MISS:.0%}: "
        words += "trust what was measured"
        blocks.append(Items([("warning", words)]))
    yield Section(caption, blocks)


def _confirmation(each: Confirmed, found: TuneResult) -> tuple[str, ...]:
    item = each.comparison
    within = (each.within_limits, each.plain_within_limits)
    return (
        found.place(item.point, lead="T = "),
        str(item.point.concurrency or 0),
        with_spread(item.speedup, unit="x") if item.speedup else "not measured",
        str(item.verdict),
        f"{each.predicted_speedup:.2f}x",
        f"{each.miss:+.0%}" if item.speedup else NONE,
        *(NONE if share is None else f"{share:.0%}" for share in within),
    )


def _place(found: TuneResult, place: tuple[str, str, float]) -> Section:
    """One candidate on one workload and temperature: throughput and latency by K and load, and its charts."""
    candidate, workload, temperature = place
    rows = [row for row in found.rows if (row.candidate, row.workload, row.temperature) == place]
    zero = [row for row in found.plain_rows if (row.workload, row.temperature) == (workload, temperature)]
    loads = sorted({row.concurrency for row in rows})
    grids = [_grid(found, [*zero, *rows], loads, unit) for unit in ("output tokens/s", "ms per token")]
    pictures = [_speedups(rows, loads), *_positions(found, place), *_misses(rows)]
    details = Details("Every K at every load", [_details(found, [*zero, *rows])])
    title = f"{candidate}: {workload}, temperature {temperature:g}"
    return Section(title, [Charts(pictures), *grids, details])


def _grid(found: TuneResult, rows: Sequence[Row], loads: Sequence[int], unit: str) -> Table:
    """One figure by K and load."""
    by_place = {(row.tokens, row.concurrency): row for row in rows}
    lengths = {
        row.tokens: f"{row.mean_length.value:.2f}" if row.mean_length else "unknown" for row in reversed(rows)
    }
    head = (Column("K"), Column("tokens per step"), *(Column(str(load)) for load in loads))
    shown = []
    for k in range(max(row.tokens for row in rows) + 1):
        cells = [_cell(by_place.get((k, load)), found, unit) for load in loads]
        shown.append((str(k), lengths.get(k, NONE) if k else "1.00", *cells))
    return Table(head, shown, f"{unit} by concurrency", keys=1)


def _cell(row: Row | None, found: TuneResult, unit: str) -> str:
    """The figure, whether it was measured, and a star if it was chosen."""
    if row is None:
        return NONE
    is_rate = unit == "output tokens/s"
    star = "*" if found.is_chosen(row) else ""
    value, measured = row.tokens_per_s, row.measured_tokens_per_s
    within = ""
    if not is_rate:
        value, measured = row.tpot_ms, row.measured_tpot_ms
        within = f" ({row.within_limits:.0%})" if row.within_limits is not None else ""
    if row.tokens and measured is not None:
        return f"{star}{value:.0f}~{measured:.1f} m{within}"
    return f"{star}{value:.1f} {'p' if row.tokens else 'm'}{within}"


def _details(found: TuneResult, rows: Sequence[Row]) -> Table:
    head = ("concurrency", "K", "chosen", "tokens per step", "break-even", "step, ms", "predicted speedup",
            "predicted tokens/s", "measured tokens/s", "predicted ms per token", "measured ms per token",
            "within limits")  # fmt: skip
    shown = [
        (
            str(row.concurrency), str(row.tokens), "yes" if found.is_chosen(row) else "",
            number(row.mean_length.value) if row.mean_length else "unknown", number(row.break_even),
            number(row.step_ms), with_spread(row.speedup, unit="x"), number(row.tokens_per_s),
            number(row.measured_tokens_per_s), number(row.tpot_ms), number(row.measured_tpot_ms),
            NONE if row.within_limits is None else f"{row.within_limits:.0%}",
        )
        for row in sorted(rows, key=lambda each: (each.concurrency, each.tokens))
    ]  # fmt: skip
    return Table([Column(name) for name in head], shown, keys=2)


def _speedups(rows: Sequence[Row], loads: Sequence[int]) -> Chart:
    by_place = {(row.concurrency, row.tokens): row.speedup for row in rows}
    tokens = sorted({row.tokens for row in rows})

    def value(load: int, k: int) -> Value | None:
        known = by_place.get((load, k))
        return clean_value(known.value, known.low, known.high) if known else None

    series = [
        Series(f"concurrency {at}", other_colour(index), tuple(value(at, k) for k in tokens))
        for index, at in enumerate(loads)
    ]
    return Chart(
        "lines", "Speedup by K", "predicted, over no speculation", "K", list(map(str, tokens)), series, 1.0
    )


def _positions(found: TuneResult, place: tuple[str, str, float]) -> Iterator[Chart]:
    candidate, workload, temperature = place
    rates = found.per_position.get(f"{candidate}/{workload}/{temperature:g}")
    if rates:
        groups = [str(at) for at in range(1, len(rates) + 1)]
        series = Series("accepted", 1, tuple(map(clean_value, rates)))
        yield Chart(
            "bars", "Acceptance by position", "measured, share of steps", "position", groups, [series]
        )


def _misses(rows: Sequence[Row]) -> Iterator[Chart]:
    """Predicted beside measured, if both are known."""
    both = [(row, row.measured_tokens_per_s) for row in rows if row.measured_tokens_per_s is not None]
    if both:
        groups = [f"{row.tokens}, {row.concurrency}" for row, _ in both]
        series = [
            Series("predicted", 1, tuple(clean_value(row.tokens_per_s) for row, _ in both)),
            Series("measured", 0, tuple(clean_value(measured) for _, measured in both)),
        ]
        unit = "output tokens/s: left predicted, right measured"
        yield Chart("bars", "Predicted and measured", unit, "K, concurrency", groups, series)


def _causes(found: TuneResult) -> Section:
    row = found.caused
    where = f" ({row.workload}, concurrency {row.concurrency}, K = {row.tokens})" if row is not None else ""
    lines = [
        (
            NONE if cause.share is None else f"{cause.share:.0%}",
            f"{cause.name}: {cause.told}; what changes it: {cause.moves}",
        )
        for cause in found.causes
    ]
    return Section(f"What limits the speedup{where}", [Items(lines)])


def as_json_text(found: TuneResult) -> str:
    """Returns the result for scripts and for the run directory; every figure says if it was measured or predicted."""
    choice = found.choice
    content = {
        "kind": "tune",
        **picked(found, "name", "fingerprint", "created"),
        "duration_s": round(found.duration_s, 1),
        **picked(found, "versions", "host", "runner", "platform", "objective", "launches"),
        "choice": {
            **picked(choice, "speculates", "reason", "candidate", "speculation"),
            "num_speculative_tokens_by_concurrency": dict(sorted(choice.by_load.items())),
            "num_speculative_tokens_per_batch_size": choice.schedule,
        },
        "candidates": found.candidates,
        "baseline": [
            {"point": place, "concurrency": load, "output_tokens_per_s": round(rate, 3), "basis": "measured"}
            for place, by_load in found.baseline.items()
            for load, rate in sorted(by_load.items())
        ],
        "points": list(map(_point, found.rows)),
        "plain_points": list(map(_point, found.plain_rows)),
        "confirmed": [{**json_values(each), "miss": each.miss} for each in found.confirmed],
        "confirmed_turn_by_turn": found.is_interleaved,
        "causes_of": _point(found.caused) if found.caused else None,
        "causes": found.causes,
        "per_position_acceptance": found.per_position,
        "notes": found.notes,
    }
    return json_document(json_values(content, digits=6)) + "\n"


def _point(row: Row) -> Mapping[str, Any]:
    return {
        **picked(row, "candidate", "workload", "temperature", "concurrency"),
        "num_speculative_tokens": row.tokens,
        "mean_acceptance_length": row.mean_length,
        "mean_acceptance_length_basis": row.length_basis,
        "break_even_mean_acceptance_length": row.break_even,
        **picked(row, "step_ms", "step_basis"),
        "predicted": {
            **picked(row, "tpot_ms", "plain_tpot_ms"),
            "output_tokens_per_s": row.tokens_per_s,
            **picked(row, "speedup", "within_limits", "plain_within_limits"),
        },
        "measured": {"output_tokens_per_s": row.measured_tokens_per_s, "tpot_ms": row.measured_tpot_ms},
    }
