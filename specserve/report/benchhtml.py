"""A benchmark's report as one HTML file, with its charts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from specserve.measure.bench.result import ArmInfo, Comparison, Figures, Quantiles, Result
from specserve.measure.statistics import CERTAINTY, COSTS_BELOW, PAYS_ABOVE
from specserve.report.benchview import (
    Row,
    Section,
    arm_words,
    basis,
    counted,
    extremes,
    load,
    machine,
    promise_words,
    question,
    sections,
    speedup_words,
    stops,
    tails,
    undecided,
    where,
)
from specserve.report.charts import COLOURS, Series, Value, Words, bars, clean_value, intervals, mark, ranges
from specserve.report.console import NONE, moment, number, percent, rate, short, spread, thirds, took
from specserve.report.html import Column, chip, escaped, figure, html_sentence, listed, page, pairs, table

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


_LEGEND = (
    "Speedup: output tokens/s over those of the first arm, with its 95 % interval. Acceptance length: tokens that one "
    "step of the target yields, its own included; at the break-even length speculation neither gains nor loses."
)
_ARM = 40
"""Characters of an arm's name in a table; whole it stands in legends."""
_NAME = Column("arm", is_name=True)


def html_report(result: Result) -> str:
    """The whole file; everything from outside is escaped."""
    shown, every = colours(result), sections(result)
    body = [_cards(result), _matrix(result, every), _promises(result)]
    for index, section in enumerate(every):
        body += _section(result, section, shown, identity=f"c{index}")
    body += [*_method(result), *_arms(result), _workloads(result), *_notes(result)]
    return page(kind="benchmark", title=result.name, lead=_lead(result), body=[part for part in body if part])


def _lead(result: Result) -> Iterator[str]:
    vllm = f"vLLM {result.versions['vllm']}" if "vllm" in result.versions else "an unknown version of vLLM"
    facts = [machine(result), vllm, moment(result.created), took(result.duration_s)]
    told = ", ".join(f'<span class="whole">{escaped(fact)}</span>' for fact in facts)
    yield f"<p>{escaped(question(result)[:1].upper() + question(result)[1:])}: {told}.</p>"
    yield f'<p class="muted">{escaped(_sentence(basis(result)))}</p>'
    if not result.is_complete:
        yield f"<p>{chip('INCONCLUSIVE')} Not complete: some cells are still to be measured.</p>"


def _cards(result: Result) -> str:
    """An arm each: from its least to its best speedup, and how often it pays."""
    lines = []
    for arm in result.arms:
        mine = [item for item in result.comparisons if item.arm == arm.name]
        if mine:
            lines += ['<div class="card">', f"<h3>{escaped(arm.name)}</h3>"]
            lines.append(f'<p class="muted small">{escaped(arm_words(arm))}</p>')
            lines += [*_range(mine), f"<p>{escaped(_sentence(counted(mine)))}</p>", "</div>"]
    return "\n".join(['<div class="cards">', *lines, "</div>"]) if lines else ""


def _range(comparisons: Sequence[Comparison]) -> Iterator[str]:
    found = extremes(comparisons)
    if found is None:
        return
    point, best, least = found
    low, high = number(least.value), number(best.value)
    yield f'<p class="figure">{low}x</p>' if low == high else f'<p class="figure">{low}x to {high}x</p>'
    yield f'<p class="muted small">{"best" if low != high else "95 %"}: {spread(best)}, {escaped(where(point))}</p>'


def _matrix(result: Result, every: Sequence[Section]) -> str:
    """Every verdict at one glance: a row per workload and arm, a column per load."""
    points = sorted(
        {item.point for item in result.comparisons}, key=lambda at: at.concurrency or at.request_rate or 0
    )
    names = list(dict.fromkeys(map(load, points)))
    rows: list[tuple[str, ...]] = []
    starts = []
    for section in every:
        arms = [arm for arm in section.arms if any(row.comparison for row in section.rows if row.arm == arm)]
        starts.append(len(rows))
        rows += [
            (
                f'<span class="over">{escaped(section.title)}</span>{escaped(short(arm, _ARM))}',
                *_verdicts(section, arm, names),
            )
            for arm in arms
        ]
    if not rows:
        return ""
    caption = "Speedup and verdict by load"
    heads = [Column(name if "/" in name else f"{name}\nat once") for name in names]
    return table((_NAME, *heads), rows, caption=caption, starts=starts, kind="matrix")


def _verdicts(section: Section, arm: str, loads: Sequence[str]) -> Iterator[str]:
    for name in loads:
        row = section.row(arm, name)
        value = speedup_words(row).partition(" ")[0] if row else ""
        yield f'<span class="value">{value or NONE}</span>{chip(row.verdict)}' if row else ""


def _promises(result: Result) -> str:
    if not result.promises:
        return ""
    rows = []
    for promise in result.promises:
        state, promised, measured = promise_words(promise)
        place = f"<code>{escaped(promise.place)}</code>" if promise.place else ""
        rows.append((chip(state), escaped(promised), measured or NONE, escaped(where(promise.point)), place))
    columns = (
        Column("promise", is_name=True),
        Column("limit", is_name=True),
        Column("measured, 95 %"),
        Column("where", is_name=True, wraps=True),
        Column("written in", is_name=True),
    )
    return f"<h2>Promises of the profile</h2>\n{table(columns, rows, stacks=True)}"


def _section(result: Result, section: Section, shown: Colours, *, identity: str) -> Iterator[str]:
    yield f"<h2>{escaped(section.title)}</h2>"
    yield _legend(section, shown)
    pictures = charts(section, colours=shown, identity=identity)
    yield "\n".join(['<div class="charts">', *pictures, "</div>"]) if pictures else ""
    told = [(f"{row.arm} at {row.load}", why) for row, why in (*undecided(section), *tails(section))]
    told += stops(result, section)
    yield listed(f"<b>{escaped(name)}</b>: {html_sentence(why)}" for name, why in told)
    yield _speedups(section)
    yield _latencies(section)


def _legend(section: Section, shown: Colours) -> str:
    lines = []
    for arm in section.arms:
        colour = shown.get(arm, 1)
        line = f'<line class="range line s{colour}" x1="0" x2="30" y1="7" y2="7"/>{mark(colour, 15, 7)}'
        lines.append(f'<li><svg viewBox="0 0 30 14" aria-hidden="true">{line}</svg>{escaped(arm)}</li>')
    return "\n".join(['<ul class="legend">', *lines, "</ul>"])


def _speedups(section: Section) -> str:
    head = (Column("load"), _NAME, Column("speedup, 95 %"), Column("verdict", is_name=True), Column("tokens/s"),
            Column("accepted"), Column("acceptance\nlength"), Column("break-even\nlength"),
            Column("cost per\nmillion tokens"), Column("requests"), Column("failed"))  # fmt: skip
    rows = []
    for row in section.rows:
        known = row.cell.figures if row.cell.invalid is None else None
        against = row.comparison
        rows.append((
            row.load, escaped(short(row.arm, _ARM)), speedup_words(row), chip(row.verdict),
            rate(known.output_tokens_per_s) if known else NONE,
            percent(known.acceptance.acceptance_rate) if known and known.acceptance else "",
            number(against.mean_acceptance_length) if against else "",
            number(against.break_even_mean_acceptance_length) if against else "",
            number(known.cost_per_million_tokens) if known else NONE,
            str(known.requests) if known else NONE,
            str(known.failed_requests) if known and known.failed_requests else NONE,
        ))  # fmt: skip
    caption = f"Throughput, measured. Load: {section.load_words}"
    return table(*_filled(head, rows), caption=caption, starts=_starts(section))


def _latencies(section: Section) -> str:
    head = (Column("load"), _NAME, Column("TTFT, ms"), Column("TPOT, ms"), Column("E2E, s"),
            Column("chunk gap\nP99, ms"), Column("goodput,\nrequests/s"))  # fmt: skip
    rows = []
    for row in section.rows:
        known = row.cell.figures if row.cell.invalid is None else None
        rows.append((
            row.load, escaped(short(row.arm, _ARM)),
            thirds(known.ttft_ms) if known else NONE, thirds(known.tpot_ms) if known else NONE,
            thirds(known.e2e_ms, divisor=1000) if known else NONE,
            rate(known.inter_chunk_p99_ms) if known else NONE, rate(known.goodput_per_s) if known else NONE,
        ))  # fmt: skip
    caption = "Latencies, measured: P50, P90 and P99 of requests"
    return table(*_filled(head, rows), caption=caption, starts=_starts(section))


def _filled(head: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[list[Column], list[list[str]]]:
    """The columns in which anything stands."""
    kept = [at for at in range(len(head)) if any(row[at] not in ("", NONE) for row in rows)]
    return [head[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _starts(section: Section) -> list[int]:
    return [at for at, row in enumerate(section.rows) if at and row.load != section.rows[at - 1].load]


def _method(result: Result) -> Iterator[str]:
    yield "<h2>How this was measured</h2>"
    yield f"<p>{_LEGEND}</p>"
    yield (
        f"<p>PAYS: the whole interval is above {PAYS_ABOVE}, and that of {CERTAINTY:.1%} is above 1. COSTS: below "
        f"{COSTS_BELOW}, and below 1. NO DIFFERENCE: the interval lies between {COSTS_BELOW} and {PAYS_ABOVE}. "
        "INCONCLUSIVE: more requests are needed. The gap between two chunks of a stream is no measure across "
        "arms: with speculation one chunk holds several tokens.</p>"
    )
    facts = {"measured": f"{escaped(moment(result.created))}, {took(result.duration_s)}"}
    facts["launches of each arm"] = str(result.launches)
    facts |= {
        key: escaped(value) for key, value in {**result.host, **result.settings, **result.versions}.items()
    }
    if result.fingerprint:
        facts["fingerprint"] = f"<code>{escaped(result.fingerprint)}</code>"
    yield pairs(facts)


def _arms(result: Result) -> Iterator[str]:
    yield "<h2>Servers</h2>"
    for arm in result.arms:
        yield f"<details><summary><b>{escaped(arm.name)}</b>: {escaped(arm_words(arm))}</summary>"
        yield pairs(_arm_facts(arm))
        if arm.argv:
            yield f"<pre>{escaped(shlex.join(arm.argv))}</pre>"
        yield "</details>"


def _arm_facts(arm: ArmInfo) -> dict[str, str]:
    known = {"target": arm.model, "draft": arm.draft_model, "URL": arm.url, "fingerprint": arm.fingerprint}
    return {term: f"<code>{escaped(value)}</code>" for term, value in known.items() if value}


def _workloads(result: Result) -> str:
    columns = (
        Column("workload", is_name=True),
        Column("prompts"),
        Column("from", is_name=True, wraps=True),
        Column("sha256 of the prompts", is_name=True),
        Column("note", is_name=True, wraps=True),
    )
    rows = [
        (
            escaped(item.name),
            str(item.prompts),
            escaped(item.source),
            f"<code>{escaped(item.sha256[:16])}</code>",
            escaped(item.note or ""),
        )
        for item in result.workloads
    ]
    return f"<h2>Workloads</h2>\n{table(columns, rows, stacks=True)}" if rows else ""


def _notes(result: Result) -> Iterator[str]:
    if result.notes:
        yield "<h2>Notes</h2>"
        yield listed(map(html_sentence, result.notes))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
