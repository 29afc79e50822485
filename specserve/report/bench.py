"""A benchmark's report: what it says, by workload and temperature, as text, markdown, a page and JSON."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import (
    ArmInfo,
    Cell,
    Comparison,
    Figures,
    Point,
    Promise,
    Quantiles,
    Result,
    Verdict,
)
from specserve.measure.statistics import CERTAINTY, COSTS_BELOW, LAUNCH_SPREAD, PAYS_ABOVE
from specserve.report.charts import Chart, Series, Value, clean_value, other_colour
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
    render,
)
from specserve.report.text import (
    NONE,
    Column,
    Table,
    json_document,
    moment,
    number,
    percent,
    quantiles_words,
    rate,
    spread,
    took,
    with_spread,
)

FORMS = ("text", "markdown", "html", "json")
_WORSE = 1.03
"""A P99 that is higher by more than this is reported even if the speedup is good."""
_HEAD = (
    Column("load"), Column("variant", "code"), Column("tokens/s"), Column("speedup, 95 %"),
    Column("verdict", "verdict"), Column("per step"),
    Column("needed"), Column("TTFT, ms"), Column("TPOT, ms"), Column("E2E, s"), Column("accepted"),
    Column("goodput/s"), Column("failed"), Column("requests", is_detail=True),
    Column("gap P99, ms", is_detail=True),
)  # fmt: skip
_LEGEND = (
    ("speedup", "output tokens/s over those of the first variant, with a 95 % interval"),
    ("per step", "mean acceptance length, in tokens per step"),
    ("needed", "the mean acceptance length at which speculation breaks even (never below 1)"),
    ("latencies", "P50/P90/P99"),
)
_METHOD = (
    f"PAYS: the 95 % interval is above {PAYS_ABOVE}, and that of {100 * CERTAINTY:g} % is above 1. COSTS: below "
    f"{COSTS_BELOW}, and below 1. NO DIFFERENCE: the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}. "
    "INCONCLUSIVE: more requests are needed. Do not compare the gap between two chunks of a stream across variants: "
    "with speculation one chunk holds several tokens."
)


def size(point: Point) -> float:
    """Returns the load as a number."""
    return float(point.concurrency if point.concurrency is not None else point.request_rate or 0)


def load(point: Point) -> str:
    """Returns `16`, or `2.5/s`."""
    return f"{size(point):g}{'' if point.concurrency is not None else '/s'}"


def load_words(point: Point) -> str:
    """Returns what its load is."""
    return "requests/s" if point.concurrency is None else "concurrency"


def setting(point: Point) -> str:
    """Returns `chat, temperature 0.7`."""
    return f"{point.workload}, temperature {point.temperature:g}"


def where(point: Point) -> str:
    """Returns `chat, concurrency 16, temperature 0.7`."""
    return setting(point).replace(f"{point.workload}, ", f"{point.workload}, {_loaded(point)}, ", 1)


def _loaded(point: Point) -> str:
    """Returns `concurrency 16`, or `2.5 requests/s`."""
    return f"{size(point):g} requests/s" if point.concurrency is None else f"concurrency {size(point):g}"


def arm_words(arm: ArmInfo) -> str:
    """Returns how a variant speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    if arm.method is None:
        return "a server that runs already" if arm.url and not arm.is_baseline else "no speculation"
    tokens = f" K={arm.num_speculative_tokens}" if arm.num_speculative_tokens is not None else ""
    return f"{arm.method}{tokens}" + (f", {arm.draft_model}" if arm.draft_model else "")


def machine(result: Result) -> str:
    """Returns `4xH100-80GB`, or the processor if there is no accelerator."""
    found = result.host.get("accelerator", "")
    if found and found != "cpu":
        return found
    cores, processor = result.host.get("cores"), result.host.get("cpu", "an unknown machine")
    return f"{cores} cores of {processor}" if cores else processor


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One variant at one load. `comparison`: None for the variant that the others are compared with."""

    cell: Cell
    comparison: Comparison | None

    @property
    def figures(self) -> Figures | None:
        """What was measured; None if it counts for nothing."""
        return self.cell.figures if self.cell.invalid is None else None

    def cells(self) -> list[str]:
        """Returns one row of the table, in the order of its head."""
        known, against, is_invalid = self.figures, self.comparison, self.cell.invalid is not None
        verdict = "invalid" if is_invalid else against.verdict.value if against else ""
        own = known.acceptance.mean_acceptance_length if known and known.acceptance else None
        compared = ["", verdict, number(own) if own else "", ""]
        if against:
            lengths = (against.mean_acceptance_length, against.break_even_mean_acceptance_length)
            compared = [with_spread(against.speedup) if known else "", verdict, *map(number, lengths)]
        cells = [load(self.cell.point), self.cell.arm]
        if known is None:
            return [*cells, NONE, *compared, *[NONE] * 8]
        accepted = percent(known.acceptance.acceptance_rate) if known.acceptance else ""
        return [
            *cells, rate(known.output_tokens_per_s), *compared, quantiles_words(known.ttft_ms),
            quantiles_words(known.tpot_ms), quantiles_words(known.e2e_ms, divisor=1000), accepted,
            rate(known.goodput_per_s), str(known.failed_requests or NONE),
            str(known.requests), rate(known.inter_chunk_p99_ms),
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchSection:
    """One workload at one temperature under one kind of load: all loads, rising, and all variants."""

    title: str
    """`chat, temperature 0.7`."""
    load_words: str
    rows: Sequence[BenchRow]

    @property
    def arms(self) -> list[str]:
        """In the order of the result."""
        return list(dict.fromkeys(row.cell.arm for row in self.rows))


def sections(result: Result) -> list[BenchSection]:
    """Returns the measured cells, by workload, temperature, prefix cache and kind of load."""
    order = [arm.name for arm in result.arms]
    compared = {(item.arm, item.point): item for item in result.comparisons}
    groups: dict[tuple[str, str], list[BenchRow]] = {}
    for cell in result.cells:
        key = (setting(cell.point), load_words(cell.point))
        groups.setdefault(key, []).append(BenchRow(cell, compared.get((cell.arm, cell.point))))

    def place(row: BenchRow) -> tuple[float, int]:
        return size(row.cell.point), order.index(row.cell.arm) if row.cell.arm in order else len(order)

    return [BenchSection(*key, sorted(rows, key=place)) for key, rows in groups.items()]


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the report, with a line break at its end; text is coloured if `stream` (default stdout) is a terminal."""
    if form == "json":
        return without_user(json_document(result)) + "\n"
    return render(_document(result), form=form, stream=stream or sys.stdout)


def _document(result: Result) -> Document:
    blocks: list[Block] = [Paragraph(_question(result), is_muted=True)]
    if not result.is_complete:
        blocks.append(Paragraph("Not complete: some cells are still to be measured."))
    targets = dict.fromkeys(arm.model for arm in result.arms if arm.model)
    arms = [(arm.name, arm_words(arm)) for arm in result.arms]
    blocks += [Cards(list(_cards(result))), Items([*(("target", model) for model in targets), *arms])]
    has_break_even = any(item.break_even_mean_acceptance_length for item in result.comparisons)
    legend = [entry for entry in _LEGEND if entry[0] != "needed" or has_break_even]
    blocks.append(Section("In the tables", [Items(legend)]))
    blocks += [_section(result, each) for each in sections(result)]
    if result.stops_paying:
        ends = [(key.replace("/", ", "), clause) for key, clause in result.stops_paying.items()]
        blocks.append(Section("Load at which speculation stops paying", [Items(ends)]))
    if result.promises:
        blocks.append(Section("Promises of the profile", [Items(list(map(_promise, result.promises)))]))
    notes = [f"{item.name}: {item.note}" for item in result.workloads if item.note]
    blocks.append(Items([("note", note) for note in (*notes, *result.notes)]))
    launches = "launch" if result.launches == 1 else "launches"
    basis = f"measured over {result.launches} {launches} of each variant"
    if any(arm.url is None for arm in result.arms):
        basis += f"; the intervals allow for {LAUNCH_SPREAD:.0%} between two starts of one server"
    blocks += [Paragraph(basis), _method(result)]
    return Document("benchmark", result.name, blocks)


def _question(result: Result) -> str:
    """Returns what is compared with what, where and when."""
    against = next((item.against for item in result.comparisons), "")
    words = f"Servers compared with {against}" if against else "Servers measured"
    if any(arm.is_baseline for arm in result.arms):
        words = "Speculation against the same server without it"
    vllm = f"vLLM {result.versions.get('vllm', 'of unknown version')}"
    return f"{words}: {machine(result)}, {vllm}, {moment(result.created)}, {took(result.duration_s)}."


def _cards(result: Result) -> Iterator[Card]:
    """Yields the worst point of each variant with its interval, how often the variant pays, and its best point."""
    for arm in result.arms:
        mine = [item for item in result.comparisons if item.arm == arm.name]
        known = [(item.speedup, item.point) for item in mine if item.speedup]
        known.sort(key=lambda item: item[0].value)
        if not known:
            if mine:
                yield Card(arm.name, NONE, [_counted(mine)])
            continue
        (worst, worst_point), (best, best_point) = known[0], known[-1]
        if len(known) == 1:
            lines = [f"95 % interval {spread(worst)} on {where(worst_point)}", _counted(mine)]
            yield Card(arm.name, f"{number(worst.value)}x", lines)
            continue
        lines = [f"95 % interval {spread(worst)}, on {where(worst_point)}", _counted(mine)]
        lines.append(f"best point: {with_spread(best, unit='x')}, on {where(best_point)}")
        yield Card(arm.name, f"{number(worst.value)}x at the worst point", lines)


def _counted(comparisons: Sequence[Comparison]) -> str:
    """Returns `pays at 3 of 4 points, costs at the other`."""
    counts = Counter(item.verdict for item in comparisons)
    total = len(comparisons)
    if len(counts) == 1:
        points = "the one point" if total == 1 else f"all {total} points"
        return f"{comparisons[0].verdict.words} at {points}"
    first, *others = [(verdict.words, counts[verdict]) for verdict in Verdict if counts[verdict]]
    parts = [
        f"{first[0]} at {first[1]} of {total} points",
        *(f"{words} at {times}" for words, times in others),
    ]
    if len(others) == 1:
        words, times = others[0]
        parts[1] = f"{words} at the other{f' {times}' if times > 1 else ''}"
    return ", ".join(parts)


def _section(result: Result, section: BenchSection) -> Section:
    blocks: list[Block] = [
        Charts(list(_charts(result, section))),
        Table(_HEAD, [row.cells() for row in section.rows], keys=2),
        Items(list(_remarks(section.rows))),
    ]
    return Section(f"{section.title} (load: {section.load_words})", blocks)


def _remarks(rows: Sequence[BenchRow]) -> Iterator[tuple[str, str]]:
    """Yields rows without a verdict, with their reason; and slower slowest requests, which a rate hides."""
    for row in rows:
        label, at, against = row.cell.arm, f"at {_loaded(row.cell.point)}, ", row.comparison
        if row.cell.invalid is not None:
            yield label, f"{at}invalid: {row.cell.invalid}"
        elif against is not None:
            if against.verdict is Verdict.INCONCLUSIVE:
                also = (
                    f" because the 99.5 % interval is {spread(against.interval_99_5)}"
                    if against.interval_99_5
                    else ""
                )
                yield label, f"{at}inconclusive{also}; needs {against.needed or 'more requests'}"
            if against.e2e_p99_ratio is not None and against.e2e_p99_ratio > _WORSE:
                longer = percent(against.e2e_p99_ratio - 1)
                yield label, f"{at}P99 of E2E is {longer} longer than that of {against.against}"


def _charts(result: Result, section: BenchSection) -> Iterator[Chart]:
    """Yields each chart of a section that has at least one value."""
    rival = next((row.comparison.against for row in section.rows if row.comparison), "the first variant")
    loads = list(dict.fromkeys(load(row.cell.point) for row in section.rows))
    x = section.load_words

    def series(value: Callable[[BenchRow, Figures], Value | None]) -> list[Series]:
        known = {
            (row.cell.arm, load(row.cell.point)): value(row, row.figures)
            for row in section.rows
            if row.figures
        }
        rows = [(arm, tuple(known.get((arm, each)) for each in loads)) for arm in section.arms]
        return [Series(arm, _colour(result, arm), values) for arm, values in rows if any(values)]

    def speedup(row: BenchRow, _: Figures) -> Value | None:
        known = row.comparison.speedup if row.comparison else None
        return clean_value(known.value, known.low, known.high) if known else None

    def latency(title: str, unit: str, of: Callable[[Figures], Quantiles], divisor: float = 1) -> Chart:
        values = series(
            lambda _, known: clean_value(
                *(getattr(of(known), name) / divisor for name in ("p50", "p50", "p99"))
            )
        )
        title_y = f"{unit}, P50 (mark) to P99 (bar)"
        return Chart("ranges", title, title_y, x, loads, values, bounds="P99")

    rates = series(lambda _, known: clean_value(known.output_tokens_per_s))
    times = f"times the tokens/s of {rival}, 95 % interval"
    drawn = (
        Chart("bars", "Throughput", "output tokens/s", x, loads, rates),
        Chart("lines", "Speedup", times, x, loads, series(speedup), reference=1.0),
        latency("Time to the first token", "ms", attrgetter("ttft_ms")),
        latency("Time per output token", "ms", attrgetter("tpot_ms")),
        latency("Time per request", "s", attrgetter("e2e_ms"), 1000),
        _positions(result, section),
    )
    yield from (chart for chart in drawn if chart.series)


def _positions(result: Result, section: BenchSection) -> Chart:
    """Returns acceptance per position at the lowest load that has it: it hardly depends on the load."""
    found: dict[str, tuple[float, ...]] = {}
    for row in section.rows:
        if row.figures and row.figures.acceptance and row.figures.acceptance.per_position:
            found.setdefault(row.cell.arm, row.figures.acceptance.per_position)
    groups = [str(at + 1) for at in range(max(map(len, found.values()), default=0))]
    series = []
    for arm, shares in found.items():
        missing = [None] * (len(groups) - len(shares))
        values = (*(clean_value(100 * share) for share in shares), *missing)
        series.append(Series(arm, _colour(result, arm), values))
    unit = "% of steps that accept draft token n"
    return Chart("bars", "Acceptance by position", unit, "draft token", groups, series)


def _colour(result: Result, arm: str) -> int:
    """Returns grey for what the others are compared with."""
    against = {item.against for item in result.comparisons}
    others = [each.name for each in result.arms if each.name not in against]
    return 0 if arm in against else other_colour(others.index(arm) if arm in others else 0)


def _method(result: Result) -> Details:
    launches = {"launches of each variant": str(result.launches)}
    facts = {**launches, **result.host, **result.settings, **result.versions}
    facts |= {"fingerprint": f"`{result.fingerprint}`"} if result.fingerprint else {}
    head = (
        Column("workload", "name"), Column("prompts"), Column("from", "name"),
        Column("sha256 of the prompts", "code"), Column("note", "text"),
    )  # fmt: skip
    rows = [
        (item.name, str(item.prompts), item.source, item.sha256[:16], item.note or "")
        for item in result.workloads
    ]
    blocks: list[Block] = [Paragraph(_METHOD), Items(list(facts.items())), Table(head, rows)]
    for arm in result.arms:
        known = (
            ("target", arm.model), ("draft", arm.draft_model), ("URL", arm.url), ("fingerprint", arm.fingerprint)
        )  # fmt: skip
        named = [(name, f"`{value}`") for name, value in known if value]
        blocks.append(Items([(arm.name, arm_words(arm)), *named]))
        if arm.argv:
            blocks.append(Verbatim(shlex.join(arm.argv)))
    return Details("How this was measured", blocks)


def _promise(promise: Promise) -> tuple[str, str]:
    """Returns `kept`, and what was promised and measured."""
    state = {True: "kept", False: "missed", None: "not decided"}[promise.kept]
    words = f"`{promise.key}: {promise.promised:g}` on {where(promise.point)}"
    if promise.measured is not None:
        digits = 2 if promise.key in ("min_speedup", "min_mean_acceptance_length") else 1
        words += f", measured {with_spread(promise.measured, digits)}"
    elif promise.kept is None:
        state = "not measured"
    return state, words + (f" ({promise.place})" if promise.place else "")
