"""A tune's report as one HTML file, with its curves. Knows nothing of the page around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from specserve.measure.bench.result import Interval
from specserve.measure.tune.result import Row, TuneResult
from specserve.report.charts import COLOURS, Series, Value, Words, bars, clean_value, intervals, mark
from specserve.report.console import NONE, moment, number, spread, took
from specserve.report.html import Column, chip, escaped, figure, html_sentence, listed, page, table

_LEGEND = (
    "Predicted: from one launch without speculation and one with K_max, by the steps that every request took. "
    "Measured: at the same load. Both are those of the full load. "
    "Tokens a step: the mean acceptance length, its own token included; "
    "at the break-even length speculation neither gains nor loses."
)


def tune_html(found: TuneResult) -> str:
    """The whole file; everything from outside is escaped."""
    body = [_choice(found), _confirmed(found), f'<p class="muted small">{escaped(_LEGEND)}</p>']
    for index, (candidate, workload, temperature) in enumerate(_places(found)):
        rows = [
            row
            for row in found.rows
            if (row.candidate, row.workload, row.temperature) == (candidate, workload, temperature)
        ]
        title = f"{candidate}: {workload}, temperature {temperature:g}"
        pictures = "\n".join(_charts(found, rows, identity=f"t{index}"))
        body += [f"<h2>{escaped(title)}</h2>", _key(rows), f'<div class="charts">{pictures}</div>']
        zero = [row for row in found.plain_rows if (row.workload, row.temperature) == (workload, temperature)]
        body.append(_table(found, [*zero, *rows]))
    body += [_causes(found), _others(found), _notes(found)]
    return page(kind="tune", title=found.name, lead=_lead(found), body=[part for part in body if part])


def _places(found: TuneResult) -> list[tuple[str, str, float]]:
    return list(dict.fromkeys((row.candidate, row.workload, row.temperature) for row in found.rows))


def _lead(found: TuneResult) -> Iterator[str]:
    where = found.host.get("accelerator", found.platform)
    vllm = found.versions.get("vllm", "of an unknown version")
    told = f"{where}, vLLM {vllm}, runner {found.runner.upper()}, {moment(found.created)}, {took(found.duration_s)}"
    yield f"<p>How many draft tokens are best, by {escaped(found.objective)}: {escaped(told)}.</p>"
    yield f'<p class="muted">{found.launches} launches of a server.</p>'


def _choice(found: TuneResult) -> str:
    choice = found.choice
    if not choice.speculates:
        return (
            f'<div class="card"><h3>Run without speculation</h3><p>{html_sentence(choice.reason)}</p></div>'
        )
    keys = (
        "method",
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
        "draft_sample_method",
    )
    speculation = choice.speculation or {}
    lines = [f"{name}: {json.dumps(speculation[name])}" for name in keys if name in speculation]
    return "\n".join(
        [
            '<div class="card">',
            f"<h3>{escaped(choice.candidate)}</h3>",
            f"<p>Predicted {escaped(choice.reason)}.</p>",
            f"<pre>{escaped(chr(10).join(lines))}</pre>",
            "</div>",
        ]
    )


def _confirmed(found: TuneResult) -> str:
    if not found.confirmed:
        return ""
    columns = [
        Column("workload", is_name=True), Column("requests\nat once"), Column("measured\nspeedup"),
        Column("verdict", is_name=True), Column("predicted"), Column("missed by"),
    ]  # fmt: skip
    rows = []
    for each in found.confirmed:
        item = each.comparison
        measured = _with_bounds(item.speedup)
        rows.append(
            [
                escaped(found.place(item.point)), escaped(item.point.concurrency), escaped(measured),
                chip(str(item.verdict)), f"{each.predicted_speedup:.2f}x",
                f"{each.miss:+.0%}" if item.speedup is not None else NONE,
            ]
        )  # fmt: skip
    how = "turn by turn with" if found.is_interleaved else "after"
    caption = f"Confirmed on other prompts, {how} the server without speculation (95 % interval)"
    return table(columns, rows, caption=caption, stacks=True)


def _with_bounds(speedup: Interval | None) -> str:
    return NONE if speedup is None else f"{number(speedup.value)}x ({spread(speedup)})"


def _charts(found: TuneResult, rows: Sequence[Row], *, identity: str) -> Iterator[str]:
    loads = sorted({row.concurrency for row in rows})
    tokens = sorted({row.tokens for row in rows})
    groups = [str(each) for each in tokens]
    by_place = {(row.concurrency, row.tokens): row for row in rows}

    def series(load: int, index: int) -> Series:
        values = [by_place.get((load, each)) for each in tokens]
        return Series(
            f"{load} at once",
            1 + index % (COLOURS - 1),
            tuple(
                clean_value(row.speedup.value, row.speedup.low, row.speedup.high) if row is not None else None
                for row in values
            ),
        )

    words = Words(f"{identity}-speedup", "Speedup by K", "predicted, over no speculation", "K")
    lines = [series(load, index) for index, load in enumerate(loads)]
    yield figure(words.title, words.unit, intervals(words, groups, lines, reference=1.0))
    yield from _positions(found, rows, identity=identity)
    yield from _misses(rows, identity=identity)


def _positions(found: TuneResult, rows: Sequence[Row], *, identity: str) -> Iterator[str]:
    first = rows[0]
    rates = found.per_position.get(f"{first.candidate}/{first.workload}/{first.temperature:g}")
    if rates:
        words = Words(
            f"{identity}-position", "Acceptance by position", "measured, share of steps", "position"
        )
        groups = [str(place) for place in range(1, len(rates) + 1)]
        values = Series("accepted", 1, tuple(clean_value(rate) for rate in rates))
        yield figure(words.title, words.unit, bars(words, groups, [values]))


def _misses(rows: Sequence[Row], *, identity: str) -> Iterator[str]:
    """Where both are known, side by side."""
    both = [row for row in rows if row.measured_tokens_per_s is not None]
    if both:
        words = Words(
            f"{identity}-miss",
            "Predicted and measured",
            "output tokens/s: left predicted, right measured",
            "K, requests at once",
        )
        groups = [f"{row.tokens}, {row.concurrency}" for row in both]
        predicted = Series("predicted", 1, tuple(Value(row.tokens_per_s) for row in both))
        measured = Series("measured", 0, tuple(Value(row.measured_tokens_per_s or 0.0) for row in both))
        yield figure(words.title, words.unit, bars(words, groups, [predicted, measured]))


def _key(rows: Sequence[Row]) -> str:
    """Which line is which load."""
    lines = []
    for index, load in enumerate(sorted({row.concurrency for row in rows})):
        colour = 1 + index % (COLOURS - 1)
        line = f'<line class="range line s{colour}" x1="0" x2="30" y1="7" y2="7"/>{mark(colour, 15, 7)}'
        lines.append(f'<li><svg viewBox="0 0 30 14" aria-hidden="true">{line}</svg>{load} at once</li>')
    return "\n".join(['<ul class="legend">', *lines, "</ul>"])


def _table(found: TuneResult, rows: Sequence[Row]) -> str:
    limited = any(row.within_limits is not None for row in rows)
    columns = [
        Column("requests\nat once"), Column("K"), Column("tokens\na step"), Column("break-even"), Column("step ms"),
        Column("predicted\nspeedup"), Column("predicted\ntokens/s"), Column("measured\ntokens/s"),
        Column("predicted\nms a token"), Column("measured\nms a token"),
        *([Column("within\nlimits")] if limited else []),
    ]  # fmt: skip
    shown: list[list[str]] = []
    starts: list[int] = []
    last = None
    for row in sorted(rows, key=lambda each: (each.concurrency, each.tokens)):
        if row.concurrency != last:
            starts.append(len(shown))
            last = row.concurrency
        measured = row.measured_tokens_per_s
        shown.append(
            [
                escaped(row.concurrency),
                f"<b>{row.tokens}</b> chosen" if found.is_chosen(row) else escaped(row.tokens),
                number(row.mean_length.value) if row.mean_length else "unknown", number(row.break_even),
                number(row.step_ms), escaped(_with_bounds(row.speedup)), number(row.tokens_per_s),
                number(measured) if measured is not None else NONE, number(row.tpot_ms),
                number(row.measured_tpot_ms) if row.measured_tpot_ms is not None else NONE,
                *([f"{row.within_limits:.0%}" if row.within_limits is not None else NONE] if limited else []),
            ]
        )  # fmt: skip
    return table(columns, shown, caption="Every K at every load", starts=starts)


def _causes(found: TuneResult) -> str:
    lines = [
        f"<b>{escaped(each.name)}</b>{f' {each.share:.0%}' if each.share is not None else ''}: {escaped(each.told)}"
        f'<br><span class="muted small">moved by {escaped(each.moves)}</span>'
        for each in found.causes
    ]
    row = found.caused
    where = f": {row.workload}, {row.concurrency} at once, K = {row.tokens}" if row is not None else ""
    return f"<h2>What keeps it from more{escaped(where)}</h2>{listed(lines)}" if lines else ""


def _others(found: TuneResult) -> str:
    lines = [
        f"{escaped(each.name)}: {html_sentence(each.left_out)}" for each in found.candidates if each.left_out
    ]
    return f"<h2>Not measured</h2>{listed(lines)}" if lines else ""


def _notes(found: TuneResult) -> str:
    lines = [html_sentence(note) for note in found.notes]
    return f"<h2>Notes</h2>{listed(lines)}" if lines else ""
