"""A benchmark's report as one HTML file. Knows nothing of the page around it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from specserve.measure.bench.result import ArmInfo, Comparison, Result
from specserve.report.benchcharts import Colours, charts, colours
from specserve.report.benchview import (
    LEGEND,
    Section,
    arm_words,
    basis,
    headlines,
    load,
    promise_words,
    sections,
    speedup_words,
    stops,
    tails,
    undecided,
    where,
)
from specserve.report.charts import mark
from specserve.report.figures import NONE, moment, number, pair_ms, pair_s, percent, rate, spread, took
from specserve.report.html import Column, chip, listed, page, pairs, table
from specserve.report.markup import escaped

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
    machine = result.host.get("accelerator") or result.host.get("cpu") or "an unknown machine"
    vllm = f"vLLM {result.versions['vllm']}" if "vllm" in result.versions else "an unknown version of vLLM"
    when = f"{moment(result.created)}, {took(result.duration_s)}"
    told = escaped(f"{machine}, {vllm}, {when}")
    yield f"<p>Speculation against the same server without it: {told}.</p>"
    yield f'<p class="muted">{escaped(_sentence(basis(result)))}</p>'
    if not result.is_complete:
        yield f"<p>{chip('INCONCLUSIVE')} Not complete: some cells are still to be measured.</p>"


def _cards(result: Result) -> str:
    told = dict(zip(dict.fromkeys(item.arm for item in result.comparisons), headlines(result), strict=True))
    lines = []
    for arm in result.arms:
        if arm.name in told:
            best = _best([item for item in result.comparisons if item.arm == arm.name])
            lines += ['<div class="card">', f"<h3>{escaped(arm.name)}</h3>"]
            lines.append(f'<p class="muted small">{escaped(arm_words(arm))}</p>')
            if best is not None and best.speedup is not None:
                value = f"up to {number(best.speedup.value)}x"
                lines.append(
                    f'<p class="figure">{value} <span class="muted small">{spread(best.speedup)}</span></p>'
                )
            lines += [f"<p>{escaped(_sentence(told[arm.name].removeprefix(f'{arm.name}: ')))}</p>", "</div>"]
    return "\n".join(['<div class="cards">', *lines, "</div>"]) if lines else ""


def _best(comparisons: list[Comparison]) -> Comparison | None:
    known = [item for item in comparisons if item.speedup is not None]
    return max(known, key=lambda item: item.speedup.value if item.speedup else 0.0, default=None)


def _matrix(result: Result, every: list[Section]) -> str:
    """Every verdict at one glance: a row per workload and arm, a column per load."""
    loads = sorted(
        {item.point for item in result.comparisons}, key=lambda at: at.concurrency or at.request_rate or 0
    )
    names = list(dict.fromkeys(load(point) for point in loads))
    rows = []
    for section in every:
        for arm in section.arms:
            found = [section.row(arm, name) for name in names]
            if any(row is not None and row.comparison is not None for row in found):
                cells = []
                for row in found:
                    value = speedup_words(row).partition(" ")[0] if row else ""
                    cells.append(
                        f'<span class="value">{value or NONE}</span>{chip(row.verdict)}' if row else ""
                    )
                rows.append((escaped(section.title), escaped(arm), *cells))
    if not rows:
        return ""
    columns = (Column("workload", is_name=True, wraps=True), _NAME, *map(Column, names))
    shown = table(columns, rows, caption="Speedup and verdict by load (requests at once, or requests/s)")
    return shown.replace("<table>", '<table class="matrix">', 1)


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
    return f"<h2>Promises of the profile</h2>\n{table(columns, rows)}"


def _section(result: Result, section: Section, shown: Colours, *, identity: str) -> Iterator[str]:
    yield f"<h2>{escaped(section.title)}</h2>"
    yield _legend(section, shown)
    pictures = charts(section, colours=shown, identity=identity)
    yield "\n".join(['<div class="charts">', *pictures, "</div>"]) if pictures else ""
    told = [(f"{row.arm} at {row.load}", why) for row, why in (*undecided(section), *tails(section))]
    told += stops(result, section)
    yield listed(f"<b>{escaped(name)}</b>: {escaped(why)}" for name, why in told)
    yield _table(section)


def _legend(section: Section, shown: Colours) -> str:
    lines = []
    for arm in section.arms:
        colour = shown.get(arm, 1)
        line = f'<line class="range line s{colour}" x1="0" x2="30" y1="7" y2="7"/>{mark(colour, 15, 7)}'
        lines.append(f'<li><svg viewBox="0 0 30 14" aria-hidden="true">{line}</svg>{escaped(arm)}</li>')
    return "\n".join(['<ul class="legend">', *lines, "</ul>"])


def _table(section: Section) -> str:
    names = ("tokens/s", "speedup, 95 %", "verdict", "accepted", "length", "needed", "TTFT, ms", "TPOT, ms", "E2E, s",
             "chunk gap P99, ms", "requests")  # fmt: skip
    rows, starts = [], []
    for index, row in enumerate(section.rows):
        if index and row.load != section.rows[index - 1].load:
            starts.append(index)
        known = row.cell.figures if row.cell.invalid is None else None
        rows.append([
            row.load, escaped(row.arm), rate(known.output_tokens_per_s) if known else NONE, speedup_words(row),
            chip(row.verdict),
            percent(known.acceptance.acceptance_rate) if known and known.acceptance else "",
            number(row.comparison.mean_acceptance_length) if row.comparison else "",
            number(row.comparison.break_even_mean_acceptance_length) if row.comparison else "",
            pair_ms(known.ttft_ms if known else None), pair_ms(known.tpot_ms if known else None),
            pair_s(known.e2e_ms if known else None), rate(known.inter_chunk_p99_ms if known else None),
            str(known.requests) if known else NONE,
            rate(known.goodput_per_s if known else None), number(known.cost_per_million_tokens if known else None),
            str(known.failed_requests) if known and known.failed_requests else NONE,
        ])  # fmt: skip
    columns = [Column("load"), _NAME, *(Column(name, is_name=name == "verdict") for name in names)]
    columns += [Column("goodput, requests/s"), Column("cost per million tokens"), Column("failed")]
    kept = [at for at in range(len(columns)) if at < 13 or any(row[at] != NONE for row in rows)]
    return table(
        [columns[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        caption=f"Measured. Load: {section.load_words}; TTFT, TPOT and E2E: P50/P99 of requests",
        starts=starts,
    )


def _method(result: Result) -> Iterator[str]:
    yield "<h2>How this was measured</h2>"
    yield f"<p>{escaped(_sentence(LEGEND))}</p>"
    yield (
        "<p>PAYS: the whole interval is above 1.03. COSTS: it is below 0.97. NO DIFFERENCE: it lies between. "
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
    return f"<h2>Workloads</h2>\n{table(columns, rows)}" if rows else ""


def _notes(result: Result) -> Iterator[str]:
    if result.notes:
        yield "<h2>Notes</h2>"
        yield listed(map(escaped, result.notes))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")
