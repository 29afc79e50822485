"""The charts of one workload: speedup, tokens/s, latencies, acceptance. Knows no page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from specserve.measure.bench.result import Figures, Quantiles, Result
from specserve.report.benchview import Row, Section
from specserve.report.charts import COLOURS, Series, Value, Words, bars, clean_value, intervals, ranges
from specserve.report.html import figure

Colours = Mapping[str, int]


def colours(result: Result) -> dict[str, int]:
    """The series of each arm: 0 for the one that the others are compared with, then 1 to 5, and again from 1."""
    against = {item.against for item in result.comparisons}
    others = [arm.name for arm in result.arms if arm.name not in against]
    found = {arm.name: 0 for arm in result.arms if arm.name in against}
    return found | {name: 1 + index % (COLOURS - 1) for index, name in enumerate(others)}


def charts(section: Section, *, colours: Colours, identity: str) -> list[str]:
    """Each chart as a figure; those without a single value are left out."""
    return [*_speedup(section, colours, identity), *_rates(section, colours, identity),
            *_latency(section, colours, identity), *_acceptance(section, colours, identity)]  # fmt: skip


def _speedup(section: Section, colours: Colours, identity: str) -> Iterator[str]:
    def value(row: Row) -> Value | None:
        known = row.comparison.speedup if row.comparison and row.cell.invalid is None else None
        return clean_value(known.value, known.low, known.high) if known else None

    against = next((row.comparison.against for row in section.rows if row.comparison), "the first arm")
    words = Words(
        f"{identity}-speedup",
        "Speedup",
        f"times the tokens/s of {against}, 95 % interval",
        section.load_words,
    )
    series = _series(section, colours, value)
    if series:
        yield figure(words.title, words.unit, intervals(words, section.loads, series, reference=1.0))


def _rates(section: Section, colours: Colours, identity: str) -> Iterator[str]:
    words = Words(f"{identity}-rate", "Throughput", "output tokens/s", section.load_words)
    series = _series(section, colours, _of(lambda known: clean_value(known.output_tokens_per_s)))
    if series:
        yield figure(words.title, words.unit, bars(words, section.loads, series))


def _latency(section: Section, colours: Colours, identity: str) -> Iterator[str]:
    def of_ttft(known: Figures) -> Value | None:
        return _span(known.ttft_ms, 1)

    def of_tpot(known: Figures) -> Value | None:
        return _span(known.tpot_ms, 1)

    def of_e2e(known: Figures) -> Value | None:
        return _span(known.e2e_ms, 1000)

    wanted = (
        ("ttft", "Time to the first token", "ms, P50 (mark) to P99 (bar)", of_ttft),
        ("tpot", "Time per output token", "ms, P50 (mark) to P99 (bar)", of_tpot),
        ("e2e", "Time for a whole answer", "s, P50 (mark) to P99 (bar)", of_e2e),
    )
    for name, title, unit, value in wanted:
        words = Words(f"{identity}-{name}", title, unit, section.load_words)
        series = _series(section, colours, _of(value))
        if series:
            yield figure(words.title, words.unit, ranges(words, section.loads, series, bounds="P99"))


def _acceptance(section: Section, colours: Colours, identity: str) -> Iterator[str]:
    """Per position, at the lowest load that has it: acceptance hardly depends on the load."""
    found: dict[str, tuple[float, ...]] = {}
    for row in section.rows:
        known = row.cell.figures
        if known is not None and known.acceptance is not None and row.cell.invalid is None:
            found.setdefault(row.arm, known.acceptance.per_position)
    count = max(map(len, found.values()), default=0)
    if not count:
        return
    series = [
        Series(
            arm,
            colours.get(arm, 1),
            tuple(clean_value(100 * share) for share in shares) + (None,) * (count - len(shares)),
        )
        for arm, shares in found.items()
    ]
    words = Words(
        f"{identity}-positions",
        "Acceptance by position",
        "% of steps that accept draft token n",
        "draft token",
    )
    yield figure(words.title, words.unit, bars(words, [str(at + 1) for at in range(count)], series))


def _series(section: Section, colours: Colours, value: Callable[[Row], Value | None]) -> list[Series]:
    found = []
    for arm in section.arms:
        rows: Sequence[Row | None] = [section.row(arm, load) for load in section.loads]
        values = tuple(value(row) if row is not None else None for row in rows)
        if any(item is not None for item in values):
            found.append(Series(arm, colours.get(arm, 1), values))
    return found


def _of(value: Callable[[Figures], Value | None]) -> Callable[[Row], Value | None]:
    def found(row: Row) -> Value | None:
        return value(row.cell.figures) if row.cell.figures is not None and row.cell.invalid is None else None

    return found


def _span(quantiles: Quantiles, divisor: float) -> Value | None:
    return clean_value(quantiles.p50 / divisor, quantiles.p50 / divisor, quantiles.p99 / divisor)
