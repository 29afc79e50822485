"""A benchmark's report: the answer first, then every load, as text, markdown, a page and JSON."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import Cell, Comparison, Figures, Point, Result, VariantInfo
from specserve.measure.bench.summary import WAITING
from specserve.measure.expect import Judged, Kept
from specserve.measure.intervals import LAUNCH_SPREAD
from specserve.measure.verdict import (
    CERTAINTY,
    COSTS,
    COSTS_BELOW,
    INCONCLUSIVE,
    NO_DIFFERENCE,
    PAYS,
    PAYS_ABOVE,
    verdict_words,
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
    *(Column("load"), Column("variant", "code"), Column("tokens/s"), Column("speedup, 95 %")),
    *(Column("verdict", "verdict"), Column("per step"), Column("needed")),
    *(
        Column(name, is_detail=True)
        for name in ("TTFT, ms", "TPOT, ms", "E2E, s", "accepted", "failed")
    ),
    *(Column(name, is_detail=True) for name in ("waited, ms", "preempted", "requests")),
)
_METHOD = (
    f"PAYS: the 95 % interval is above {PAYS_ABOVE}, and that of {100 * CERTAINTY:g} % is above 1. "
    f"COSTS: below {COSTS_BELOW}, and below 1. NO DIFFERENCE: the interval lies between "
    f"{COSTS_BELOW} and {PAYS_ABOVE}. INCONCLUSIVE: more must be measured. Latencies are "
    "P50/P90/P99."
)


def variant_words(variant: VariantInfo) -> str:
    """Return how a variant speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    if variant.method is None:
        return (
            "a server that runs already"
            if variant.url and not variant.is_baseline
            else "no speculation"
        )
    tokens = (
        f" K={variant.num_speculative_tokens}" if variant.num_speculative_tokens is not None else ""
    )
    return f"{variant.method}{tokens}" + (f", {variant.draft_model}" if variant.draft_model else "")


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """Return the report; text is coloured if `stream` (default stdout) is a terminal."""
    if form == "json":
        return without_user(json_document(result)) + "\n"
    return render(_document(result), form=form, stream=stream or sys.stdout)


def _document(result: Result) -> Document:
    against = next((item.against for item in result.comparisons), "the first variant")
    blocks: list[Block] = [Cards(list(_answers(result)))]
    if not result.is_complete:
        blocks.append(Paragraph("Not complete: some cells are still to be measured."))
    blocks.append(Paragraph(_question(result, against), is_muted=True))
    lines = [
        ("target", model)
        for model in dict.fromkeys(variant.model for variant in result.variants)
        if model
    ]
    for variant in result.variants:
        room = (
            f"; KV cache of {variant.kv_cache_tokens:,} tokens" if variant.kv_cache_tokens else ""
        )
        lines.append((variant.name, variant_words(variant) + room))
    blocks.append(Items(lines))
    groups: dict[str, list[Cell]] = {}
    for cell in result.cells:
        title = f"{cell.point.workload}, temperature {cell.point.temperature:g}"
        groups.setdefault(f"{title} (load: concurrency)", []).append(cell)
    blocks += [_section(result, title, cells) for title, cells in groups.items()]
    legend = f"speedup: output tokens/s over those of {against}; per step: mean acceptance length"
    if any(item.break_even_mean_acceptance_length for item in result.comparisons):
        legend += "; needed: the length at which speculation breaks even (never below 1)"
    blocks.append(Paragraph(legend, is_muted=True))
    if result.stops_paying:
        ends = Items(list(result.stops_paying.items()))
        blocks.append(Section("Load at which speculation stops paying", [ends]))
    promises = [_promise(each, cell.point) for cell in result.cells for each in cell.promises]
    if promises:
        blocks.append(Section("Promises of the profile", [Items(promises)]))
    blocks.append(Items([("note", note) for note in result.notes]))
    launches = "launch" if result.launches == 1 else "launches"
    basis = f"measured over {result.launches} {launches} of each variant"
    if any(variant.url is None for variant in result.variants):
        spread = f"{LAUNCH_SPREAD:.0%} between two starts of one server"
        basis += f"; the intervals allow for {spread}"
    every = [*blocks, Paragraph(basis), _method(result)]
    return Document("benchmark", result.name, every, has_answer=True)


def _question(result: Result, against: str) -> str:
    """Return what is compared with what, where and when."""
    words = f"Servers compared with {against}"
    if any(variant.is_baseline for variant in result.variants):
        words = "Speculation against the same server without it"
    found = result.host.get("accelerator", "cpu")
    if found == "cpu":
        found = f"{result.host.get('cores', '?')} CPU cores"
    vllm = f"vLLM {result.versions.get('vllm', 'of unknown version')}"
    when = f"{moment(result.created)}, {duration(result.duration_s)}"
    return f"{words}: {found}, {vllm}, {when}."


def _answers(result: Result) -> Iterator[Card]:
    """Yield for each variant how often it pays, its worst and best point, and what to do."""
    for variant in result.variants:
        mine = [item for item in result.comparisons if item.variant == variant.name]
        if not mine:
            continue
        ordered = sorted(mine, key=lambda item: _ORDER.index(item.verdict.word))
        counts = Counter(verdict_words(item.verdict) for item in ordered)
        words = [f"{words} at {count}" for words, count in counts.items()]
        words[0] += f" of {len(mine)} points"
        answer = ", ".join(words)
        if len(counts) == 1:
            where = f" at all {len(mine)} points" if len(mine) > 1 else ""
            answer = f"{verdict_words(mine[0].verdict)}{where}"
        known = [(item.speedup, item.point) for item in mine if item.speedup]
        known.sort(key=lambda item: item[0].value)
        ends = [known[0], known[-1]] if len(known) > 1 else known
        names = ("at worst on ", "at best on ") if len(known) > 1 else ("on ",)
        lines = [
            f"{with_spread(speedup, unit='x')} {name}{point}"
            for name, (speedup, point) in zip(names, ends, strict=False)
        ]
        yield Card(variant.name, answer, [*lines, *_advice(result, mine)])


def _advice(result: Result, mine: Sequence[Comparison]) -> Iterator[str]:
    """Yield what to do: decide it where it is open, else serve with or without speculation."""
    verdicts = {item.verdict.word for item in mine}
    undecided = next((item for item in mine if item.verdict.level == "open"), None)
    if undecided is not None:
        at = f" at {undecided.point}" if len(mine) > 1 else ""
        yield f"not decided{at}: {undecided.verdict.sentence}"
    elif not any(variant.is_baseline for variant in result.variants):
        return
    elif verdicts == {PAYS}:
        yield "serve with it"
    elif PAYS in verdicts:
        yield "serve with it where it pays; `specserve tune` looks for a K for the other loads"
    else:
        yield "serve without it, or let `specserve tune` look for a K that pays"


def _section(result: Result, title: str, cells: Sequence[Cell]) -> Section:
    """Return one workload at one temperature: all loads, rising, and all variants."""
    names = [variant.name for variant in result.variants]
    compared = {(item.variant, item.point): item for item in result.comparisons}
    cells = sorted(cells, key=lambda cell: (cell.point.concurrency, names.index(cell.variant)))
    rows, remarks, lengths = [], [], []
    for cell in cells:
        item = compared.get((cell.variant, cell.point))
        load = str(cell.point.concurrency)
        rows.append(row(cell, item))
        for words in _remarks(cell, item):
            remarks.append((cell.variant, f"at concurrency {load}, {words}"))
        for part in item.by_length if item else ():
            tokens = f"{part.from_tokens:,}-{part.to_tokens:,}"
            speedup = with_spread(part.speedup)
            lengths.append([load, cell.variant, tokens, speedup, part.verdict.word])
    blocks: list[Block] = [Charts(list(_charts(result, cells, compared)))]
    blocks += [Table(_HEAD, rows, keys=2), Items(remarks)]
    if lengths:
        head = (*_HEAD[:2], Column("prompt tokens"), *_HEAD[3:5])
        blocks.append(Details("Speedup by length of the prompt", [Table(head, lengths)]))
    return Section(title, blocks)


def row(cell: Cell, against: Comparison | None) -> list[str]:
    """Return one row of the table. `against`: None for what the others are compared with."""
    known = cell.figures if cell.invalid is None else None
    own = known.acceptance if known else None
    verdict = "invalid" if cell.invalid else against.verdict.word if against else ""
    columns = ["", verdict, decimals(own.mean_acceptance_length) if own else "", ""]
    if against:
        lengths = (against.mean_acceptance_length, against.break_even_mean_acceptance_length)
        speedup = with_spread(against.speedup) if known else ""
        columns = [speedup, verdict, *map(decimals, lengths)]
    cells = [str(cell.point.concurrency), cell.variant]
    if known is None:
        return [*cells, DASH, *columns, *[DASH] * 8]
    return [
        *(*cells, rate(known.output_tokens_per_s), *columns),
        *map(quantiles_words, (known.ttft_ms, known.tpot_ms)),
        quantiles_words(known.e2e_ms, divisor=1000),
        percent(own.acceptance_rate) if own else "",
        str(known.failed_requests or DASH),
        rate(known.queue_ms),
        str(known.preemptions or DASH),
        str(known.requests),
    ]


def _remarks(cell: Cell, against: Comparison | None) -> Iterator[str]:
    """Yield why there is no verdict, who waited for room, and what a total hides."""
    known = cell.figures
    if cell.invalid is not None:
        yield f"invalid: {cell.invalid}"
        return
    if known and ((known.queue_ms or 0) > WAITING * known.e2e_ms.p50 or known.preemptions):
        waited = f"requests waited {rate(known.queue_ms)} ms before they ran"
        yield f"{waited}, {known.preemptions} were preempted"
    if against is None:
        return
    if against.verdict.level == "open":
        yield f"inconclusive: {against.verdict.sentence}"
    levels = [part.verdict.level for part in against.by_length]  # an open part says neither
    if "good" in levels and "bad" in levels:
        up_to = levels.index("bad")
        if up_to and "good" not in levels[up_to:] and levels[up_to - 1] == "good":
            yield f"pays up to about {against.by_length[up_to - 1].to_tokens:,} tokens of prompt"
        else:
            yield "whether it pays depends on the length of the prompt: see the page"
    if against.e2e_p99_ratio is not None and against.e2e_p99_ratio > _WORSE:
        more = percent(against.e2e_p99_ratio - 1)
        yield f"P99 of E2E is {more} longer than that of {against.against}"


def _charts(
    result: Result, cells: Sequence[Cell], compared: Mapping[tuple[str, Point], Comparison]
) -> Iterator[Chart]:
    """Yield each chart of a section that has at least one value."""
    rivals = dict.fromkeys(item.against for item in compared.values())
    others = [variant.name for variant in result.variants if variant.name not in rivals]
    loads = list(dict.fromkeys(str(cell.point.concurrency) for cell in cells))
    valid = [cell for cell in cells if cell.figures and cell.invalid is None]

    def colour(variant: str) -> int:
        """Grey for what the others are compared with."""
        return (
            0
            if variant in rivals
            else other_colour(others.index(variant) if variant in others else 0)
        )

    def series(value: Callable[[Cell, Figures], Value | None]) -> list[Series]:
        known: dict[str, dict[str, Value | None]] = {cell.variant: {} for cell in cells}
        for cell in valid:
            assert cell.figures is not None
            known[cell.variant][str(cell.point.concurrency)] = value(cell, cell.figures)
        lines = [(variant, tuple(map(values.get, loads))) for variant, values in known.items()]
        return [
            Series(variant, colour(variant), values) for variant, values in lines if any(values)
        ]

    def speedup(cell: Cell, _: Figures) -> Value | None:
        found = compared.get((cell.variant, cell.point))
        known = found.speedup if found else None
        return clean_value(known.value, known.low, known.high) if known else None

    def tpot(_: Cell, known: Figures) -> Value | None:
        return clean_value(known.tpot_ms.p50, known.tpot_ms.p50, known.tpot_ms.p99)

    shares: dict[str, tuple[float, ...]] = {}
    for cell in valid:  # at the lowest load that has it: it hardly depends on the load
        if cell.figures and cell.figures.acceptance:
            shares.setdefault(cell.variant, cell.figures.acceptance.per_position)
    tokens = range(max(map(len, shares.values()), default=0))
    positions = [
        Series(
            variant,
            colour(variant),
            tuple(clean_value(100 * own[at]) if at < len(own) else None for at in tokens),
        )
        for variant, own in shares.items()
        if own
    ]
    rates = series(lambda _, known: clean_value(known.output_tokens_per_s))
    times = f"times the tokens/s of {next(iter(rivals), 'the first variant')}, 95 % interval"
    x, spread = "concurrency", "ms, P50 (mark) to P99 (bar)"
    unit, draft = "% of steps that accept draft token n", [str(at + 1) for at in tokens]
    drawn = (
        Chart("bars", "Throughput", "output tokens/s", x, loads, rates),
        Chart("lines", "Speedup", times, x, loads, series(speedup), reference=1.0),
        Chart("ranges", "Time per output token", spread, x, loads, series(tpot), bounds="P99"),
        Chart("bars", "Acceptance by position", unit, "draft token", draft, positions),
    )
    yield from (chart for chart in drawn if chart.series)


def _method(result: Result) -> Details:
    facts = {**result.host, **result.versions}
    head = (Column("workload", "name"), Column("prompts"), Column("from", "name"))
    rows = [
        (item.name, str(item.prompts), item.source, item.sha256[:16]) for item in result.workloads
    ]
    table = Table((*head, Column("sha256 of the prompts", "code")), rows)
    blocks: list[Block] = [Paragraph(_METHOD), Items(list(facts.items())), table]
    for variant in result.variants:
        names = {"target": variant.model, "draft": variant.draft_model, "URL": variant.url}
        named = [(name, f"`{value}`") for name, value in names.items() if value]
        blocks.append(Items([(variant.name, variant_words(variant)), *named]))
        if variant.argv:
            blocks.append(Verbatim(shlex.join(variant.argv)))
    return Details("How this was measured", blocks)


def _promise(promise: Judged, point: Point) -> tuple[str, str]:
    """Return `kept`, and what was promised and measured."""
    limit = promise.limit
    word = "not decided" if promise.kept is Kept.UNDECIDED else promise.kept.value
    words = f"`{limit.key}: {limit.promised:g}` on {point}"
    if promise.measured is not None:
        digits = 1 if limit.key.endswith("_ms") else 2
        words += f", measured {with_spread(promise.measured, digits)}"
    return word, f"{words} ({limit.place})"
