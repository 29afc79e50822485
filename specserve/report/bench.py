"""A benchmark's report: the answer first, then every load, as text, markdown, a page and JSON."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.figures import WAITING, verdict_words
from specserve.measure.bench.result import (
    ArmInfo,
    Cell,
    Comparison,
    Figures,
    Point,
    Promise,
    Quantiles,
    Result,
)
from specserve.measure.statistics import (
    CERTAINTY,
    COSTS,
    COSTS_BELOW,
    INCONCLUSIVE,
    LAUNCH_SPREAD,
    NO_DIFFERENCE,
    PAYS,
    PAYS_ABOVE,
)
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
    DASH,
    Column,
    Table,
    decimals,
    duration,
    json_document,
    moment,
    percent,
    quantiles_words,
    rate,
    with_spread,
)

_WORSE = 1.03
"""A P99 that is higher by more than this is reported even if the speedup is good."""
_ORDER = (PAYS, COSTS, NO_DIFFERENCE, INCONCLUSIVE)
_HEAD = (
    Column("load"), Column("variant", "code"), Column("tokens/s"), Column("speedup, 95 %"),
    Column("verdict", "verdict"), Column("per step"), Column("needed"),
    *(Column(name, is_detail=True) for name in (
        "TTFT, ms", "TPOT, ms", "E2E, s", "accepted", "goodput/s", "failed", "waited, ms", "preempted",
        "requests", "gap P99, ms")),
)  # fmt: skip
_METHOD = (
    f"PAYS: the 95 % interval is above {PAYS_ABOVE}, and that of {100 * CERTAINTY:g} % is above 1. "
    f"COSTS: below {COSTS_BELOW}, and below 1. NO DIFFERENCE: the interval lies between "
    f"{COSTS_BELOW} and {PAYS_ABOVE}. INCONCLUSIVE: more requests are needed. Latencies are "
    "P50/P90/P99. Do not compare the gap between two chunks of a stream across variants: with "
    "speculation one chunk holds several tokens."
)


def load(point: Point) -> str:
    """Returns `16`, or `2.5/s`."""
    return f"{point.concurrency}" if point.concurrency is not None else f"{point.request_rate:g}/s"


def load_words(point: Point) -> str:
    """Returns `concurrency 16`, or `2.5 requests/s`."""
    if point.concurrency is None:
        return f"{point.request_rate:g} requests/s"
    return f"concurrency {point.concurrency}"


def where(point: Point) -> str:
    """Returns `chat, concurrency 16, temperature 0.7`."""
    return f"{point.workload}, {load_words(point)}, temperature {point.temperature:g}"


def arm_words(arm: ArmInfo) -> str:
    """Returns how a variant speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    if arm.method is None:
        return "a server that runs already" if arm.url and not arm.is_baseline else "no speculation"
    tokens = f" K={arm.num_speculative_tokens}" if arm.num_speculative_tokens is not None else ""
    return f"{arm.method}{tokens}" + (f", {arm.draft_model}" if arm.draft_model else "")


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the report; text is coloured if `stream` (default stdout) is a terminal."""
    if form == "json":
        return without_user(json_document(result)) + "\n"
    return render(_document(result), form=form, stream=stream or sys.stdout)


def _document(result: Result) -> Document:
    against = next((item.against for item in result.comparisons), "the first variant")
    blocks: list[Block] = [Cards(list(_answers(result)))]
    if not result.is_complete:
        blocks.append(Paragraph("Not complete: some cells are still to be measured."))
    blocks.append(Paragraph(_question(result, against), is_muted=True))
    targets = dict.fromkeys(arm.model for arm in result.arms if arm.model)
    room = {
        arm.name: f"; KV cache of {arm.kv_cache_tokens:,} tokens" if arm.kv_cache_tokens else ""
        for arm in result.arms
    }
    arms = [(arm.name, arm_words(arm) + room[arm.name]) for arm in result.arms]
    blocks.append(Items([*(("target", model) for model in targets), *arms]))
    groups: dict[str, list[Cell]] = {}
    for cell in result.cells:
        kind = "requests/s" if cell.point.concurrency is None else "concurrency"
        title = f"{cell.point.workload}, temperature {cell.point.temperature:g} (load: {kind})"
        groups.setdefault(title, []).append(cell)
    blocks += [_section(result, title, cells) for title, cells in groups.items()]
    legend = f"speedup: output tokens/s over those of {against}; per step: mean acceptance length"
    if any(item.break_even_mean_acceptance_length for item in result.comparisons):
        legend += "; needed: the length at which speculation breaks even (never below 1)"
    blocks.append(Paragraph(legend, is_muted=True))
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
    return Document("benchmark", result.name, [*blocks, Paragraph(basis), _method(result)], has_answer=True)


def _question(result: Result, against: str) -> str:
    """Returns what is compared with what, where and when."""
    words = f"Servers compared with {against}"
    if any(arm.is_baseline for arm in result.arms):
        words = "Speculation against the same server without it"
    found, cores = result.host.get("accelerator", ""), result.host.get("cores")
    if not found or found == "cpu":
        found = result.host.get("cpu", "an unknown machine")
        found = f"{cores} cores of {found}" if cores else found
    vllm = f"vLLM {result.versions.get('vllm', 'of unknown version')}"
    return f"{words}: {found}, {vllm}, {moment(result.created)}, {duration(result.duration_s)}."


def _answers(result: Result) -> Iterator[Card]:
    """Yields for each variant how often it pays, its worst and best point, and what to do."""
    for arm in result.arms:
        mine = [item for item in result.comparisons if item.arm == arm.name]
        if not mine:
            continue
        total = len(mine)
        mine.sort(key=lambda item: _ORDER.index(item.verdict.word))
        counts = Counter(verdict_words(item.verdict) for item in mine)
        words = [f"{words} at {count}" for words, count in counts.items()]
        words[0] += f" of {total} points"
        answer = verdict_words(mine[0].verdict) if total == 1 else ", ".join(words)
        if total > 1 and len(counts) == 1:
            answer = f"{verdict_words(mine[0].verdict)} at all {total} points"
        known = [(item.speedup, item.point) for item in mine if item.speedup]
        known.sort(key=lambda item: item[0].value)
        ends = [known[0], known[-1]] if len(known) > 1 else known
        names = ("at worst on ", "at best on ") if len(known) > 1 else ("on ",)
        lines = [
            f"{with_spread(speedup, unit='x')} {name}{where(point)}"
            for name, (speedup, point) in zip(names, ends, strict=False)
        ]
        yield Card(arm.name, answer, [*lines, *_advice(result, mine)])


def _advice(result: Result, mine: Sequence[Comparison]) -> Iterator[str]:
    """Yields what to do: decide it where it is open, else serve with or without speculation."""
    verdicts = {item.verdict.word for item in mine}
    undecided = next((item for item in mine if item.verdict.level == "open"), None)
    if undecided is not None:
        at = f" at {where(undecided.point)}" if len(mine) > 1 else ""
        yield f"not decided{at}: {undecided.verdict.sentence}"
    elif not any(arm.is_baseline for arm in result.arms):
        return
    elif verdicts == {PAYS}:
        yield "serve with it"
    elif PAYS in verdicts:
        yield "serve with it where it pays; `specserve tune` looks for a K for the other loads"
    else:
        yield "serve without it, or let `specserve tune` look for a K that pays"


def _section(result: Result, title: str, cells: Sequence[Cell]) -> Section:
    """Returns one workload at one temperature: all loads, rising, and all variants."""
    order = {arm.name: at for at, arm in enumerate(result.arms)}
    compared = {(item.arm, item.point): item for item in result.comparisons}
    cells = sorted(
        cells,
        key=lambda cell: (
            cell.point.concurrency or cell.point.request_rate or 0,
            order.get(cell.arm, len(order)),
        ),
    )
    rows = [row(cell, compared.get((cell.arm, cell.point))) for cell in cells]
    remarks = [
        (cell.arm, f"at {load_words(cell.point)}, {words}")
        for cell in cells
        for words in _remarks(cell, compared.get((cell.arm, cell.point)))
    ]
    charts = list(_charts(result, cells, compared))
    return Section(title, [Charts(charts), Table(_HEAD, rows, keys=2), Items(remarks)])


def row(cell: Cell, against: Comparison | None) -> list[str]:
    """Returns one row of the table. `against`: None for the variant that others are compared with."""
    known = cell.figures if cell.invalid is None else None
    own = known.acceptance if known else None
    verdict = "invalid" if cell.invalid else against.verdict.word if against else ""
    columns = ["", verdict, decimals(own.mean_acceptance_length) if own else "", ""]
    if against:
        lengths = (against.mean_acceptance_length, against.break_even_mean_acceptance_length)
        columns = [with_spread(against.speedup) if known else "", verdict, *map(decimals, lengths)]
    cells = [load(cell.point), cell.arm]
    if known is None:
        return [*cells, DASH, *columns, *[DASH] * 10]
    return [
        *cells, rate(known.output_tokens_per_s), *columns, quantiles_words(known.ttft_ms),
        quantiles_words(known.tpot_ms), quantiles_words(known.e2e_ms, divisor=1000),
        percent(own.acceptance_rate) if own else "", rate(known.goodput_per_s),
        str(known.failed_requests or DASH), rate(known.queue_ms), str(known.preemptions or DASH),
        str(known.requests), rate(known.inter_chunk_p99_ms),
    ]  # fmt: skip


def _remarks(cell: Cell, against: Comparison | None) -> Iterator[str]:
    """Yields why there is no verdict, who waited for room, and slower slowest requests."""
    known = cell.figures
    if cell.invalid is not None:
        yield f"invalid: {cell.invalid}"
        return
    if known and ((known.queue_ms or 0) > WAITING * known.e2e_ms.p50 or known.preemptions):
        yield f"requests waited {rate(known.queue_ms)} ms before they ran, {known.preemptions} were preempted"
    if against is None:
        return
    if against.verdict.level == "open":
        yield f"inconclusive: {against.verdict.sentence}"
    if against.e2e_p99_ratio is not None and against.e2e_p99_ratio > _WORSE:
        yield f"P99 of E2E is {percent(against.e2e_p99_ratio - 1)} longer than that of {against.against}"


def _charts(
    result: Result, cells: Sequence[Cell], compared: Mapping[tuple[str, Point], Comparison]
) -> Iterator[Chart]:
    """Yields each chart of a section that has at least one value."""
    rivals = dict.fromkeys(item.against for item in compared.values())
    others = [arm.name for arm in result.arms if arm.name not in rivals]
    loads = list(dict.fromkeys(load(cell.point) for cell in cells))
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    x = load_words(cells[0].point).split()[0] if cells[0].point.concurrency else "requests/s"

    def colour(arm: str) -> int:
        """Grey for what the others are compared with."""
        return 0 if arm in rivals else other_colour(others.index(arm) if arm in others else 0)

    def series(value: Callable[[Cell, Figures], Value | None]) -> list[Series]:
        known = {
            (cell.arm, load(cell.point)): value(cell, cell.figures)
            for cell in cells
            if cell.figures and cell.invalid is None
        }
        lines = [(arm, tuple(known.get((arm, each)) for each in loads)) for arm in arms]
        return [Series(arm, colour(arm), values) for arm, values in lines if any(values)]

    def speedup(cell: Cell, _: Figures) -> Value | None:
        found = compared.get((cell.arm, cell.point))
        known = found.speedup if found else None
        return clean_value(known.value, known.low, known.high) if known else None

    def latency(title: str, unit: str, of: Callable[[Figures], Quantiles], divisor: float = 1) -> Chart:
        def value(_: Cell, known: Figures) -> Value | None:
            middle, high = of(known).p50 / divisor, of(known).p99 / divisor
            return clean_value(middle, middle, high)

        return Chart(
            "ranges", title, f"{unit}, P50 (mark) to P99 (bar)", x, loads, series(value), bounds="P99"
        )

    shares: dict[str, tuple[float, ...]] = {}
    for cell in cells:  # at the lowest load that has it: it hardly depends on the load
        if cell.figures and cell.figures.acceptance and cell.invalid is None:
            shares.setdefault(cell.arm, cell.figures.acceptance.per_position)
    tokens = [str(at + 1) for at in range(max(map(len, shares.values()), default=0))]
    positions = [
        Series(arm, colour(arm), tuple(clean_value(100 * each[at]) if at < len(each) else None
                                       for at in range(len(tokens))))
        for arm, each in shares.items() if each
    ]  # fmt: skip
    rates = series(lambda _, known: clean_value(known.output_tokens_per_s))
    times = f"times the tokens/s of {next(iter(rivals), 'the first variant')}, 95 % interval"
    unit = "% of steps that accept draft token n"
    drawn = (
        Chart("bars", "Throughput", "output tokens/s", x, loads, rates),
        Chart("lines", "Speedup", times, x, loads, series(speedup), reference=1.0),
        latency("Time to the first token", "ms", attrgetter("ttft_ms")),
        latency("Time per output token", "ms", attrgetter("tpot_ms")),
        latency("Time per request", "s", attrgetter("e2e_ms"), 1000),
        Chart("bars", "Acceptance by position", unit, "draft token", tokens, positions),
    )
    yield from (chart for chart in drawn if chart.series)


def _method(result: Result) -> Details:
    facts = {"launches of each variant": str(result.launches)}
    facts |= {**result.host, **result.settings, **result.versions}
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
        names = {
            "target": arm.model,
            "draft": arm.draft_model,
            "URL": arm.url,
            "fingerprint": arm.fingerprint,
        }
        named = [(name, f"`{value}`") for name, value in names.items() if value]
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
