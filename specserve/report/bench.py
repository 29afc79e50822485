"""A benchmark's report: what it says, by workload and temperature, as text, markdown, a page and JSON."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import (
    Comparison,
    Figures,
    Promise,
    Result,
    Verdict,
)
from specserve.measure.statistics import CERTAINTY, COSTS_BELOW, PAYS_ABOVE
from specserve.report.benchrows import (
    BenchRow,
    BenchSection,
    arm_words,
    bench_charts,
    machine,
    sections,
    where,
)
from specserve.report.document import (
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
)
from specserve.report.numbers import (
    NONE,
    moment,
    number,
    percent,
    quantiles_words,
    rate,
    spread,
    took,
    with_spread,
)
from specserve.report.page import render
from specserve.report.serializer import json_document
from specserve.report.table import Column, Table, distinct

FORMS = ("text", "markdown", "html", "json")
_WORSE = 1.03
"""A P99 that is higher by more than this is reported even if the speedup is good."""
_NAME_WIDTH = 20
"""Columns that an arm's name may take in text."""


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """Returns the report, with a line break at its end; text is coloured if `stream` (default stdout) is a terminal."""
    if form == "json":
        return without_user(json_document(result)) + "\n"
    names = {arm.name: arm.name for arm in result.arms}
    if form == "text":
        names = distinct(list(names), _NAME_WIDTH)
    return render(bench_document(result, names), form=form, stream=stream or sys.stdout)


Names = Mapping[str, str]


def bench_document(result: Result, names: Names) -> Document:
    """Returns the whole report. `names`: what each arm is called in it."""
    blocks: list[Block] = [Paragraph(_question(result), is_muted=True)]
    if not result.is_complete:
        blocks.append(Paragraph("Not complete: some cells are still to be measured."))
    blocks += [Cards(list(_cards(result, names))), _arms(result, names)]
    blocks += [_section(result, section, names) for section in sections(result)]
    if result.promises:
        blocks.append(Section("Promises of the profile", [Items(list(map(_promise, result.promises)))]))
    notes = [("note", note) for note in _notes(result)]
    blocks += [Items(notes), Paragraph(_LEGEND), Paragraph(_basis(result)), _method(result, names)]
    return Document("benchmark", result.name, blocks)


def _question(result: Result) -> str:
    """What is compared with what, where and when."""
    against = next((item.against for item in result.comparisons), "")
    words = f"Servers compared with {against}" if against else "Servers measured"
    if any(arm.is_baseline for arm in result.arms):
        words = "Speculation against the same server without it"
    vllm = f"vLLM {result.versions['vllm']}" if "vllm" in result.versions else "vLLM of unknown version"
    return f"{words}: {machine(result)}, {vllm}, {moment(result.created)}, {took(result.duration_s)}."


def _cards(result: Result, names: Names) -> Iterator[Card]:
    """The worst point of each arm with its own interval, then how often the arm pays and its best point."""
    for arm in result.arms:
        mine = [item for item in result.comparisons if item.arm == arm.name]
        known = sorted(
            ((item.speedup, item.point) for item in mine if item.speedup), key=lambda item: item[0].value
        )
        if known:
            worst, best = known[0], known[-1]
            lines = [f"95 % interval {spread(worst[0])} on {where(worst[1])}", _counted(mine)]
            if len(known) > 1:
                lines.append(f"best: {with_spread(best[0], unit='x')} on {where(best[1])}")
            yield Card(
                _named(arm.name, names), f"{number(worst[0].value)}x{' at worst' * (len(known) > 1)}", lines
            )
        elif mine:
            yield Card(_named(arm.name, names), NONE, [_counted(mine)])


def _counted(comparisons: Sequence[Comparison]) -> str:
    """`pays at 3, costs at 1 of 4 points`."""
    counts = Counter(item.verdict for item in comparisons)
    words = {
        Verdict.PAYS: "pays",
        Verdict.COSTS: "costs",
        Verdict.NO_DIFFERENCE: "makes no difference",
        Verdict.INCONCLUSIVE: "is inconclusive",
    }
    if len(counts) == 1:
        of_all = len(comparisons)
        return (
            f"{words[comparisons[0].verdict]} at {'the one point' if of_all == 1 else f'all {of_all} points'}"
        )
    parts = [f"{words[verdict]} at {counts[verdict]}" for verdict in Verdict if counts[verdict]]
    return f"{', '.join(parts)} of {len(comparisons)} points"


def _named(arm: str, names: Names) -> str:
    return names.get(arm, arm[-_NAME_WIDTH:])


def _arms(result: Result, names: Names) -> Items:
    targets = dict.fromkeys(arm.model for arm in result.arms if arm.model)
    lines = [("target", model) for model in targets]
    for arm in result.arms:
        full = f" ({arm.name})" if _named(arm.name, names) != arm.name else ""
        lines.append((_named(arm.name, names), arm_words(arm) + full))
    return Items(lines)


def _section(result: Result, section: BenchSection, names: Names) -> Section:
    remarks = [(f"{_named(row.arm, names)} at {row.load}", why) for row, why in _remarks(section)]
    remarks += [(_named(arm, names), clause) for arm, clause in _stops(result, section)]
    blocks: list[Block] = [
        Charts(list(bench_charts(result, section))),
        _figures(section, names),
        Items(remarks),
    ]
    return Section(f"{section.title} (load: {section.load_words}; latencies P50/P90/P99)", blocks)


_HEAD = (
    Column("load"), Column("arm", "code"), Column("tokens/s"), Column("speedup, 95 %"), Column("verdict", "verdict"),
    Column("length"), Column("needed"), Column("TTFT, ms"), Column("TPOT, ms"), Column("E2E, s"), Column("accepted"),
    Column("goodput/s"), Column("cost/M"), Column("failed"), Column("requests", is_detail=True),
    Column("gap P99, ms", is_detail=True),
)  # fmt: skip


def _figures(section: BenchSection, names: Names) -> Table:
    rows = []
    for row in section.rows:
        known, against = row.figures, row.comparison
        speedup = with_spread(against.speedup) if against and row.cell.invalid is None else ""
        lengths = (
            (against.mean_acceptance_length, against.break_even_mean_acceptance_length) if against else ()
        )
        shown = [
            row.load,
            _named(row.arm, names),
            rate(known.output_tokens_per_s) if known else NONE,
            speedup,
        ]
        shown += [row.verdict, *(map(number, lengths) if lengths else ("", ""))]
        rows.append([*shown, *(_latencies(known) if known else [NONE] * 9)])
    return Table(_HEAD, rows, keys=2)


def _latencies(known: Figures) -> list[str]:
    return [
        quantiles_words(known.ttft_ms), quantiles_words(known.tpot_ms), quantiles_words(known.e2e_ms, divisor=1000),
        percent(known.acceptance.acceptance_rate) if known.acceptance else "",
        rate(known.goodput_per_s), number(known.cost_per_million_tokens),
        str(known.failed_requests) if known.failed_requests else NONE,
        str(known.requests), rate(known.inter_chunk_p99_ms),
    ]  # fmt: skip


def _remarks(section: BenchSection) -> Iterator[tuple[BenchRow, str]]:
    """Rows without a verdict, with their reason; then those whose slowest requests are slower, which a rate hides."""
    for row in section.rows:
        if row.cell.invalid is not None:
            yield row, f"invalid: {row.cell.invalid}"
        elif row.comparison is not None and row.comparison.verdict is Verdict.INCONCLUSIVE:
            yield row, f"inconclusive, needs {row.comparison.needed or 'more requests'}"
    for row in section.rows:
        ratio = row.comparison.e2e_p99_ratio if row.comparison and row.cell.invalid is None else None
        if ratio is not None and ratio > _WORSE and row.comparison:
            yield row, f"P99 of E2E is {percent(ratio - 1)} longer than that of {row.comparison.against}"


def _stops(result: Result, section: BenchSection) -> Iterator[tuple[str, str]]:
    """Per arm, where it stops paying on this workload."""
    for arm in section.arms:
        for form in (str(section.temperature), f"{section.temperature:g}"):
            clause = result.stops_paying.get(f"{arm}/{section.workload}/{form}")
            if clause is not None:
                yield arm, clause
                break


def _promise(promise: Promise) -> tuple[str, str]:
    """`kept`, and what was promised and measured."""
    state = {True: "kept", False: "missed", None: "not decided"}[promise.kept]
    words = f"`{promise.key}: {promise.promised:g}` on {where(promise.point)}"
    if promise.measured is not None:
        digits = 2 if promise.key in ("min_speedup", "min_mean_acceptance_length") else 1
        words += f", measured {with_spread(promise.measured, digits)}"
    elif promise.kept is None:
        state = "not measured"
    return state, words + (f" ({promise.place})" if promise.place else "")


def _notes(result: Result) -> Iterator[str]:
    yield from (f"{item.name}: {item.note}" for item in result.workloads if item.note)
    yield from result.notes
    placed = {clause for section in sections(result) for _, clause in _stops(result, section)}
    yield from (f"{key}: {clause}" for key, clause in result.stops_paying.items() if clause not in placed)


_LEGEND = (
    "speedup: output tokens/s over those of the first arm, with its 95 % interval; length: mean acceptance length, "
    "tokens per step; needed: the length at which speculation breaks even"
)


def _basis(result: Result) -> str:
    """What the intervals hold for."""
    if result.launches > 1:
        return f"measured over {result.launches} launches of each arm"
    return "measured within one launch: another start of the same servers may differ by a few %"


def _method(result: Result, names: Names) -> Details:
    verdicts = (
        f"PAYS: the whole interval is above {PAYS_ABOVE}, and that of {CERTAINTY:.1%} is above 1. COSTS: below "
        f"{COSTS_BELOW}, and below 1. NO DIFFERENCE: the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}. "
        "INCONCLUSIVE: more requests are needed. Do not compare the gap between two chunks of a stream across arms: "
        "with speculation one chunk holds several tokens."
    )
    facts = {
        "launches of each arm": str(result.launches),
        **result.host,
        **result.settings,
        **result.versions,
    }
    facts |= {"fingerprint": f"`{result.fingerprint}`"} if result.fingerprint else {}
    workloads = [
        (item.name, str(item.prompts), item.source, item.sha256[:16], item.note or "")
        for item in result.workloads
    ]
    head = (Column("workload", "name"), Column("prompts"), Column("from", "name"))
    sums = Table((*head, Column("sha256 of the prompts", "code"), Column("note", "text")), workloads)
    blocks: list[Block] = [Paragraph(verdicts), Items(list(facts.items())), sums]
    for arm in result.arms:
        known = {
            "target": arm.model,
            "draft": arm.draft_model,
            "URL": arm.url,
            "fingerprint": arm.fingerprint,
        }
        own = Items(
            [(_named(arm.name, names), arm_words(arm)), *((k, f"`{v}`") for k, v in known.items() if v)]
        )
        blocks += [own, *([Verbatim(shlex.join(arm.argv))] if arm.argv else [])]
    return Details("How this was measured", blocks)
