"""A benchmark's cells in reading order, and its charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from specserve.measure.bench.result import ArmInfo, Cell, Comparison, Figures, Point, Quantiles, Result
from specserve.report.charts import Chart, Series, Value, clean_value, other_colour


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One arm at one load."""

    arm: str
    load: str
    cell: Cell
    comparison: Comparison | None
    """None for the arm that the others are compared with."""

    @property
    def figures(self) -> Figures | None:
        """What was measured; None if it counts for nothing."""
        return self.cell.figures if self.cell.invalid is None else None

    @property
    def verdict(self) -> str:
        """The verdict's word, `invalid`, or nothing for the baseline."""
        if self.cell.invalid is not None:
            return "invalid"
        return self.comparison.verdict.value if self.comparison else ""


@dataclass(frozen=True, slots=True)
class BenchSection:
    """One workload at one temperature: all loads and arms."""

    workload: str
    temperature: float
    prefix_cache: bool
    by_rate: bool
    """The load is requests/s, not concurrency."""
    rows: tuple[BenchRow, ...]

    @property
    def title(self) -> str:
        """`chat, temperature 0.7`."""
        cache = "" if self.prefix_cache else ", prefix cache off"
        return f"{self.workload}, temperature {self.temperature:g}{cache}"

    @property
    def loads(self) -> list[str]:
        """In rising order."""
        return list(dict.fromkeys(row.load for row in self.rows))

    @property
    def arms(self) -> list[str]:
        """In the order of the result."""
        return list(dict.fromkeys(row.arm for row in self.rows))

    @property
    def load_words(self) -> str:
        """What a load is."""
        return "requests/s" if self.by_rate else "concurrency"


def sections(result: Result) -> list[BenchSection]:
    """Returns the measured cells, by workload, temperature, prefix cache and kind of load."""
    order = {arm.name: at for at, arm in enumerate(result.arms)}
    compared = {(item.arm, item.point): item for item in result.comparisons}
    groups: dict[tuple[str, float, bool, bool], list[Cell]] = {}
    for cell in result.cells:
        point = cell.point
        key = (point.workload, point.temperature, point.prefix_cache, point.concurrency is None)
        groups.setdefault(key, []).append(cell)
    found = []
    for key, cells in groups.items():
        cells.sort(key=lambda cell: (size(cell.point), order.get(cell.arm, len(order))))
        rows = [
            BenchRow(cell.arm, load(cell.point), cell, compared.get((cell.arm, cell.point))) for cell in cells
        ]
        found.append(BenchSection(*key, tuple(rows)))
    return found


def size(point: Point) -> float:
    """Returns the load as a number."""
    return float(point.concurrency if point.concurrency is not None else point.request_rate or 0)


def load(point: Point) -> str:
    """Returns `16`, or `2.5/s`."""
    return f"{size(point):g}{'' if point.concurrency is not None else '/s'}"


def where(point: Point) -> str:
    """Returns `chat, concurrency 16, temperature 0.7`."""
    traffic = (
        f"concurrency {point.concurrency}" if point.concurrency is not None else f"{size(point):g} requests/s"
    )
    cache = "" if point.prefix_cache else ", prefix cache off"
    return f"{point.workload}, {traffic}, temperature {point.temperature:g}{cache}"


def arm_words(arm: ArmInfo) -> str:
    """Returns how an arm speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
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


def bench_charts(result: Result, section: BenchSection) -> Iterator[Chart]:
    """Yields each chart of a section that has at least one value."""
    against = {item.against for item in result.comparisons}
    others = [arm.name for arm in result.arms if arm.name not in against]
    colours = {name: other_colour(at) for at, name in enumerate(others)} | dict.fromkeys(against, 0)
    rival = next((row.comparison.against for row in section.rows if row.comparison), "the first arm")

    def series(value: Callable[[BenchRow, Figures], Value | None]) -> list[Series]:
        known = {(row.arm, row.load): value(row, row.figures) for row in section.rows if row.figures}
        arms = [(arm, tuple(known.get((arm, each)) for each in section.loads)) for arm in section.arms]
        return [Series(arm, colours.get(arm, 1), values) for arm, values in arms if any(values)]

    def speedup(row: BenchRow, _: Figures) -> Value | None:
        known = row.comparison.speedup if row.comparison else None
        return clean_value(known.value, known.low, known.high) if known else None

    def span(known: Quantiles, divisor: float = 1) -> Value | None:
        return clean_value(known.p50 / divisor, known.p50 / divisor, known.p99 / divisor)

    unit, x, loads = "P50 (mark) to P99 (bar)", section.load_words, section.loads
    times = f"times the tokens/s of {rival}, 95 % interval"
    rates = series(lambda _, known: clean_value(known.output_tokens_per_s))
    ttft = series(lambda _, known: span(known.ttft_ms))
    tpot = series(lambda _, known: span(known.tpot_ms))
    e2e = series(lambda _, known: span(known.e2e_ms, 1000))
    drawn = (
        Chart("bars", "Throughput", "output tokens/s", x, loads, rates),
        Chart("lines", "Speedup", times, x, loads, series(speedup), reference=1.0),
        Chart("ranges", "Time to the first token", f"ms, {unit}", x, loads, ttft, bounds="P99"),
        Chart("ranges", "Time per output token", f"ms, {unit}", x, loads, tpot, bounds="P99"),
        Chart("ranges", "Time per request", f"s, {unit}", x, loads, e2e, bounds="P99"),
        _positions(section, colours),
    )
    yield from (chart for chart in drawn if chart.series)


def _positions(section: BenchSection, colours: Mapping[str, int]) -> Chart:
    """Acceptance per position at the lowest load that has it: it hardly depends on the load."""
    found: dict[str, tuple[float, ...]] = {}
    for row in section.rows:
        if row.figures and row.figures.acceptance and row.figures.acceptance.per_position:
            found.setdefault(row.arm, row.figures.acceptance.per_position)
    most = max(map(len, found.values()), default=0)
    series = [
        Series(
            arm,
            colours.get(arm, 1),
            (*(clean_value(100 * share) for share in shares), *([None] * (most - len(shares)))),
        )
        for arm, shares in found.items()
    ]
    groups = [str(at + 1) for at in range(most)]
    unit = "% of steps that accept draft token n"
    return Chart("bars", "Acceptance by position", unit, "draft token", groups, series)
