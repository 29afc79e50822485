"""A benchmark's report: the answer for each variant, then every load."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import (
    Cell,
    Comparison,
    Quantiles,
    Result,
    VariantInfo,
)
from specserve.measure.bench.summary import WAITING
from specserve.measure.intervals import Estimate
from specserve.measure.verdict import PAYS, verdict_words
from specserve.measure.watch.verdict import promise_words
from specserve.report.charts import Chart
from specserve.report.page import Block, Details, Document, Items, Paragraph, Section, render
from specserve.report.text import (
    DASH,
    Column,
    Table,
    decimals,
    duration,
    json_document,
    moment,
    percent,
    rate,
    with_spread,
)

_HEAD = [
    Column("load"),
    Column("variant", "name"),
    Column("tokens/s"),
    Column("speedup, 95 %"),
    Column("verdict", "name"),
    Column("per step"),
    Column("needed"),
]
_LATENCIES = ("TTFT, ms", "TPOT, ms", "E2E, ms")
_COUNTS = ("accepted", "waited, ms", "preempted", "failed")
_DETAILS = [Column(name, is_detail=True) for name in (*_LATENCIES, *_COUNTS)]


def variant_words(variant: VariantInfo) -> str:
    """Return how a variant speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    block = variant.speculation
    if block is None:
        is_other = variant.url and not variant.is_baseline
        return "a server that runs already" if is_other else "no speculation"
    tokens, draft = block.get("num_speculative_tokens"), block.get("model")
    words = f"{block.get('method')}{f' K={tokens}' if tokens else ''}"
    return f"{words}, {draft}" if draft else words


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """Return the report; text is coloured if `stream` (default stdout) is a terminal."""
    if form == "json":
        return without_user(json_document(result)) + "\n"
    return render(_document(result), form=form, stream=stream or sys.stdout)


def result_files(result: Result) -> dict[str, str]:
    """Return what the run directory gets, by file name."""
    forms = {"result.json": "json", "report.html": "html"}
    return {name: rendered(result, form=form) for name, form in forms.items()}


def _document(result: Result) -> Document:
    against = next((item.against for item in result.comparisons), "the first variant")
    models = dict.fromkeys(each.model for each in result.variants if each.model)
    lines = [("target", model) for model in models]
    answers = []
    for variant in result.variants:
        room, words = variant.kv_cache_tokens, variant_words(variant)
        lines.append((variant.name, words + (f"; KV cache of {room:,} tokens" if room else "")))
        if mine := [item for item in result.comparisons if item.variant == variant.name]:
            answers.append((variant.name, _answer(result, mine)))
    machine = result.host.get("accelerator", "cpu")
    if machine == "cpu":
        machine = f"{result.host.get('cores', '?')} CPU cores"
    launches = f"{result.launches} {'launch' if result.launches == 1 else 'launches'}"
    where = f"{machine}, vLLM {result.versions.get('vllm', '?')}, {launches} of each variant"
    lines.append(("measured", f"{where}, {moment(result.created)}, {duration(result.duration_s)}"))
    blocks: list[Block] = [Items(lines)]
    if not result.is_complete:
        blocks.insert(0, Paragraph("Not complete: some cells are still to be measured."))
    places = dict.fromkeys((cell.point.workload, cell.point.temperature) for cell in result.cells)
    blocks += [_section(result, *place, against) for place in places]
    legend = (
        f"speedup: output tokens/s over those of {against}; per step: mean acceptance length; "
        "needed: the length at which speculation breaks even (never below 1)"
    )
    blocks.append(Paragraph(legend))
    found = [("stops paying", f"{name}: {why}") for name, why in result.stops_paying.items()]
    for cell in result.cells:
        for each in cell.promises:
            found.append((each.kept.value, f"{cell.point}: {promise_words(each)}"))
    found += [("note", note) for note in result.notes]
    method = list({**result.host, **result.versions}.items())
    method += [(name, f"prompts of sha256 {mark[:16]}") for name, mark in result.workloads.items()]
    method += [(each.name, f"`{shlex.join(each.argv)}`") for each in result.variants if each.argv]
    blocks += [Items(found), Details("How this was measured", [Items(method)])]
    return Document("benchmark", result.name, blocks, answers)


def _answer(result: Result, mine: Sequence[Comparison]) -> str:
    """Return how often a variant pays, its worst and its best point, and what to do."""
    counts = Counter(verdict_words(item.verdict) for item in mine)
    parts = [", ".join(f"{words} at {count}" for words, count in counts.items())]
    parts[0] += f" of {len(mine)} points"
    if len(mine) == 1:
        parts = list(counts)
    known = [(item.speedup, item.point) for item in mine if item.speedup]
    known.sort(key=lambda item: item[0].value)
    if len(known) == 1:
        parts.append(f"{with_spread(known[0][0], unit='x')} on {known[0][1]}")
    elif known:
        for name, (speedup, point) in (("at worst", known[0]), ("at best", known[-1])):
            parts.append(f"{with_spread(speedup, unit='x')} {name} on {point}")
    verdicts = {item.verdict.word for item in mine}
    undecided = next((item for item in mine if item.verdict.level == "open"), None)
    if undecided is not None:
        at_point = f" at {undecided.point}" if len(mine) > 1 else ""
        parts.append(f"not decided{at_point}: {undecided.verdict.sentence}")
    elif any(variant.is_baseline for variant in result.variants):
        if verdicts == {PAYS}:
            parts.append("serve with it")
        elif PAYS in verdicts:
            parts.append("serve with it where it pays; `specserve tune` looks for another K")
        else:
            parts.append("serve without it, or let `specserve tune` look for a K that pays")
    return "; ".join(parts)


def _section(result: Result, workload: str, temperature: float, against: str) -> Section:
    """Return one workload at one temperature: all loads, rising, and all variants."""
    names = [variant.name for variant in result.variants]
    compared = {(item.variant, item.point): item for item in result.comparisons}
    place = (workload, temperature)
    cells = [
        cell for cell in result.cells if (cell.point.workload, cell.point.temperature) == place
    ]
    cells.sort(key=lambda cell: (cell.point.concurrency, names.index(cell.variant)))
    rows, remarks, lengths = [], [], []
    speedups = dict[str, dict[str, Estimate]]()
    for cell in cells:
        item = compared.get((cell.variant, cell.point))
        load = str(cell.point.concurrency)
        rows.append(_row(cell, item))
        for words in _remarks(cell, item):
            remarks.append((cell.variant, f"at concurrency {load}, {words}"))
        if item is not None and item.speedup is not None:
            speedups.setdefault(cell.variant, {})[load] = item.speedup
        for part in item.by_length if item else ():
            tokens = f"{part.from_tokens:,}-{part.to_tokens:,}"
            speedup = with_spread(part.speedup)
            lengths.append([load, cell.variant, tokens, speedup, part.verdict.word])
    blocks: list[Block] = [Table([*_HEAD, *_DETAILS], rows, keys=2), Items(remarks)]
    if speedups:
        unit = f"times the tokens/s of {against}, 95 % interval"
        blocks.insert(0, Chart("Speedup", unit, "concurrency", speedups))
    if lengths:
        head = (*_HEAD[:2], Column("prompt tokens"), *_HEAD[3:5])
        blocks.append(Details("Speedup by length of the prompt", [Table(head, lengths, keys=2)]))
    return Section(f"{workload}, temperature {temperature:g} (load: concurrency)", blocks)


def _row(cell: Cell, item: Comparison | None) -> list[str]:
    """Return one row of the table; without `item`: of what the others are compared with."""
    known = cell.figures if cell.invalid is None else None
    own = known.acceptance if known else None
    row = [str(cell.point.concurrency), cell.variant]
    row.append(rate(known.output_tokens_per_s) if known else DASH)
    verdict = "invalid" if cell.invalid else item.verdict.word if item else ""
    if item is None:
        row += ["", verdict, decimals(own.mean_acceptance_length) if own else "", ""]
    else:
        lengths = (item.mean_acceptance_length, item.break_even_mean_acceptance_length)
        row += [with_spread(item.speedup) if known else "", verdict, *map(decimals, lengths)]
    if known is None:
        return row + [DASH] * len(_DETAILS)
    row += map(_quantiles, (known.ttft_ms, known.tpot_ms, known.e2e_ms))
    row += [percent(own.acceptance_rate) if own else "", rate(known.queue_ms)]
    return row + [str(number or DASH) for number in (known.preemptions, known.failed_requests)]


def _quantiles(found: Quantiles) -> str:
    return "/".join(map(rate, (found.p50, found.p90, found.p99)))


def _remarks(cell: Cell, item: Comparison | None) -> Iterator[str]:
    """Yield why there is no verdict, who waited for room, and what a total hides."""
    known = cell.figures
    if cell.invalid is not None:
        yield f"invalid: {cell.invalid}"
        return
    if known and ((known.queue_ms or 0) > WAITING * known.e2e_ms.p50 or known.preemptions):
        waited = f"requests waited {rate(known.queue_ms)} ms before they ran"
        yield f"{waited}, {known.preemptions} were preempted"
    if item is None:
        return
    if item.verdict.level == "open":
        yield f"inconclusive: {item.verdict.sentence}"
    levels = [part.verdict.level for part in item.by_length]  # an open part says neither
    up_to = levels.index("bad") if "bad" in levels else 0
    if up_to and levels[up_to - 1] == "good" and "good" not in levels[up_to:]:
        yield f"pays up to about {item.by_length[up_to - 1].to_tokens:,} tokens of prompt"
