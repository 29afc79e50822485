"""What every form of a benchmark's report says: its parts in reading order, and its sentences. Draws nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specserve.measure.bench.result import (
    ArmInfo,
    Cell,
    Comparison,
    Interval,
    Point,
    Promise,
    Result,
    Verdict,
)
from specserve.report.console import number, percent, spread

_WORSE = 1.03
"""A P99 that is higher by more than this is told even where the speedup is good."""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm at one load."""

    arm: str
    load: str
    cell: Cell
    comparison: Comparison | None
    """None for the arm that the others are compared with."""

    @property
    def verdict(self) -> str:
        """The verdict's word, `invalid`, or nothing for the baseline."""
        if self.cell.invalid is not None:
            return "invalid"
        return self.comparison.verdict.value if self.comparison else ""


@dataclass(frozen=True, slots=True)
class Section:
    """One workload at one temperature: all loads and arms."""

    workload: str
    temperature: float
    prefix_cache: bool
    by_rate: bool
    """The load is requests/s, not requests at once."""
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """`chat, temperature 0.7`."""
        cache = "" if self.prefix_cache else ", prefix cache off"
        return f"{self.workload}, temperature {self.temperature:g}{cache}"

    @property
    def loads(self) -> tuple[str, ...]:
        """In rising order."""
        return tuple(dict.fromkeys(row.load for row in self.rows))

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order of the result."""
        return tuple(dict.fromkeys(row.arm for row in self.rows))

    @property
    def load_words(self) -> str:
        """What a load is."""
        return "requests/s" if self.by_rate else "requests at once"

    def row(self, arm: str, load: str) -> Row | None:
        """One of its rows."""
        return next((row for row in self.rows if (row.arm, row.load) == (arm, load)), None)


def sections(result: Result) -> list[Section]:
    """The measured cells, by workload, temperature, prefix cache and kind of load."""
    order = [arm.name for arm in result.arms]
    compared = {(item.arm, item.point): item for item in result.comparisons}
    groups: dict[tuple[str, float, bool, bool], list[Cell]] = {}
    for cell in result.cells:
        point = cell.point
        key = (point.workload, point.temperature, not point.prefix_cache, point.concurrency is None)
        groups.setdefault(key, []).append(cell)
    found = []
    for (workload, temperature, no_cache, by_rate), cells in groups.items():
        cells.sort(key=lambda cell: (_size(cell.point), _place(cell.arm, order)))
        rows = [Row(cell.arm, load(cell.point), cell, compared.get((cell.arm, cell.point))) for cell in cells]
        found.append(Section(workload, temperature, not no_cache, by_rate, tuple(rows)))
    return found


def load(point: Point) -> str:
    """`16`, or `2.5/s`."""
    return (
        f"{point.request_rate:g}/s"
        if point.concurrency is None and point.request_rate
        else str(point.concurrency or 0)
    )


def where(point: Point) -> str:
    """`chat, 16 requests at once, temperature 0.7`."""
    if point.concurrency is None:
        traffic = f"{point.request_rate or 0:g} requests/s"
    else:
        traffic = f"{point.concurrency} request{'' if point.concurrency == 1 else 's'} at once"
    cache = "" if point.prefix_cache else ", prefix cache off"
    return f"{point.workload}, {traffic}, temperature {point.temperature:g}{cache}"


def arm_words(arm: ArmInfo) -> str:
    """How an arm speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    if arm.method is None:
        return "a server that runs already" if arm.url and not arm.is_baseline else "no speculation"
    count = f" K={arm.num_speculative_tokens}" if arm.num_speculative_tokens is not None else ""
    return f"{arm.method}{count}" + (f", {arm.draft_model}" if arm.draft_model else "")


def headlines(result: Result) -> list[str]:
    """One sentence an arm: where it pays and where it costs."""
    lines = []
    for arm in compared_arms(result):
        mine = [item for item in result.comparisons if item.arm == arm]
        best = extremes(mine)
        more = f"; at best {number(best[1].value)}x ({spread(best[1])}) on {where(best[0])}" if best else ""
        lines.append(f"{arm}: {counted(mine)}{more}")
    return lines


def compared_arms(result: Result) -> list[str]:
    """Those with a verdict."""
    return list(dict.fromkeys(item.arm for item in result.comparisons))


def extremes(comparisons: Sequence[Comparison]) -> tuple[Point, Interval, Interval] | None:
    """Where the best speedup is, that speedup, and the least one."""
    known = [(item.point, item.speedup) for item in comparisons if item.speedup is not None]
    if not known:
        return None
    point, best = max(known, key=lambda item: item[1].value)
    return point, best, min((speedup for _, speedup in known), key=lambda item: item.value)


def counted(comparisons: Sequence[Comparison]) -> str:
    """`pays at 3, costs at 1 of 4 points`."""
    counts = Counter(item.verdict for item in comparisons)
    (only, of_all) = counts.most_common(1)[0]
    words = {
        Verdict.PAYS: "pays",
        Verdict.COSTS: "costs",
        Verdict.NO_DIFFERENCE: "makes no difference",
        Verdict.INCONCLUSIVE: "is inconclusive",
    }
    if of_all == len(comparisons):
        return f"{words[only]} at {'the one point' if of_all == 1 else f'all {of_all} points'}"
    parts = [f"{words[verdict]} at {counts[verdict]}" for verdict in Verdict if counts[verdict]]
    return f"{', '.join(parts)} of {len(comparisons)} points"


def question(result: Result) -> str:
    """What is compared with what."""
    if any(arm.is_baseline for arm in result.arms):
        return "speculation against the same server without it"
    against = next((item.against for item in result.comparisons), "")
    return f"servers compared with {against}" if against else "servers measured"


def machine(result: Result) -> str:
    """`4xH100-80GB`, or the processor where there is no accelerator."""
    found = result.host.get("accelerator", "")
    if found and found != "cpu":
        return found
    cores, processor = result.host.get("cores"), result.host.get("cpu", "an unknown machine")
    return f"{cores} cores of {processor}" if cores else processor


def basis(result: Result) -> str:
    """What the intervals hold for."""
    if result.launches > 1:
        return f"measured over {result.launches} launches of each arm"
    return "measured within one launch: another start of the same servers may differ by some per cent"


LEGEND = (
    "speedup: output tokens/s over those of the first arm, with its 95 % interval; length: mean acceptance length, "
    "tokens a step; needed: the length at which speculation breaks even"
)


def undecided(section: Section) -> Iterator[tuple[Row, str]]:
    """Rows without a verdict, each with its reason or what it needs."""
    for row in section.rows:
        if row.cell.invalid is not None:
            yield row, f"invalid: {row.cell.invalid}"
        elif row.comparison is not None and row.comparison.verdict is Verdict.INCONCLUSIVE:
            yield row, f"inconclusive, needs {row.comparison.needed or 'more requests'}"


def tails(section: Section) -> Iterator[tuple[Row, str]]:
    """Rows whose slowest requests are slower than those of the baseline, which a throughput hides."""
    for row in section.rows:
        ratio = row.comparison.e2e_p99_ratio if row.comparison and row.cell.invalid is None else None
        if ratio is not None and ratio > _WORSE:
            against = row.comparison.against if row.comparison else ""
            yield row, f"P99 of E2E is {percent(ratio - 1)} longer than that of {against}"


def stops(result: Result, section: Section) -> list[tuple[str, str]]:
    """Per arm, where it stops paying on this workload."""
    found = []
    for arm in section.arms:
        keys = {
            f"{arm}/{section.workload}/{form}" for form in (section.temperature, f"{section.temperature:g}")
        }
        found += [(arm, result.stops_paying[key]) for key in sorted(keys) if key in result.stops_paying][:1]
    return found


def promise_words(promise: Promise) -> tuple[str, str, str]:
    """`kept`, what was promised, what was measured."""
    state = {True: "kept", False: "missed", None: "not decided"}[promise.kept]
    if promise.measured is None:
        return (state if promise.kept is not None else "not measured"), _promised(promise), ""
    digits = 2 if promise.key in ("min_speedup", "min_mean_acceptance_length") else 1
    value = number(promise.measured.value, digits)
    return state, _promised(promise), f"{value} ({spread(promise.measured, digits)})"


def _promised(promise: Promise) -> str:
    return f"{promise.key}: {promise.promised:g}"


def speedup_words(row: Row) -> str:
    """The speedup with its bounds; nothing for the baseline and for invalid cells."""
    if row.comparison is None or row.cell.invalid is not None:
        return ""
    return (
        f"{number(row.comparison.speedup.value)} ({spread(row.comparison.speedup)})"
        if row.comparison.speedup
        else "-"
    )


def _size(point: Point) -> float:
    return float(point.concurrency if point.concurrency is not None else point.request_rate or 0)


def _place(arm: str, order: list[str]) -> int:
    return order.index(arm) if arm in order else len(order)
