"""A benchmark's report as markdown, for a pull request. Holds no picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specserve.measure.bench.result import Result
from specserve.report.benchview import (
    LEGEND,
    Section,
    arm_words,
    basis,
    headlines,
    promise_words,
    sections,
    speedup_words,
    stops,
    tails,
    undecided,
    where,
)
from specserve.report.figures import NONE, moment, number, pair_ms, pair_s, percent, rate, took
from specserve.report.markup import code, code_cell, escaped, markdown, markdown_sentence

_HEAD = (
    *("load", "arm", "tokens/s", "speedup, 95 %", "verdict", "accepted", "length", "needed"),
    *("TTFT ms", "TPOT ms", "E2E s"),
)
_NUMBERS = frozenset(_HEAD) - {"arm", "verdict"}


def markdown_report(result: Result) -> str:
    """The whole report; everything from outside is escaped."""
    parts = [f"### Benchmark of {markdown(result.name)}"]
    parts.append("\n".join(f"- {markdown(line)}" for line in headlines(result)))
    parts += [_section(result, section) for section in sections(result)]
    parts += [_promises(result), _details(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[str] = frozenset()
) -> str:
    """A table of cells that are markdown already."""
    rule = ["---:" if name in numbers else "---" for name in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _section(result: Result, section: Section) -> str:
    lines = [f"**{markdown(section.title)}** (load: {section.load_words}; latencies p50/p99)", ""]
    lines.append(table(_HEAD, [_row(section, at) for at in range(len(section.rows))], numbers=_NUMBERS))
    after = [f"{row.arm} at {row.load}: {why}" for row, why in (*undecided(section), *tails(section))]
    after += [f"{arm}: {clause}" for arm, clause in stops(result, section)]
    return "\n".join([*lines, *([""] if after else []), *(f"- {markdown_sentence(item)}" for item in after)])


def _row(section: Section, at: int) -> tuple[str, ...]:
    row = section.rows[at]
    known = row.cell.figures if row.cell.invalid is None else None
    verdict = f"**{row.verdict}**" if row.verdict else ""
    accepted = percent(known.acceptance.acceptance_rate) if known and known.acceptance else ""
    return (
        row.load,
        code_cell(row.arm),
        rate(known.output_tokens_per_s) if known else NONE,
        speedup_words(row),
        verdict,
        accepted,
        number(row.comparison.mean_acceptance_length) if row.comparison else "",
        number(row.comparison.break_even_mean_acceptance_length) if row.comparison else "",
        pair_ms(known.ttft_ms if known else None),
        pair_ms(known.tpot_ms if known else None),
        pair_s(known.e2e_ms if known else None),
    )


def _promises(result: Result) -> str:
    if not result.promises:
        return ""
    rows = []
    for promise in result.promises:
        state, promised, measured = promise_words(promise)
        rows.append((f"**{state}**", code_cell(promised), markdown(where(promise.point)), measured or NONE))
    return table(("promise", "limit", "where", "measured, 95 %"), rows)


def _details(result: Result) -> str:
    lines = [f"- {item}" for item in _facts(result)]
    summary = f"<summary>How this was measured: {escaped(basis(result).removeprefix('measured '))}</summary>"
    return "\n".join(["<details>", summary, "", *lines, "", "</details>"])


def _facts(result: Result) -> Iterator[str]:
    yield markdown(LEGEND)
    yield f"{markdown(moment(result.created))}, {took(result.duration_s)}"
    if not result.is_complete:
        yield "not complete: some cells are still to be measured"
    for values in (result.host, result.versions, result.settings):
        if values:
            yield ", ".join(f"{markdown(key)} {code(value)}" for key, value in values.items())
    for arm in result.arms:
        fingerprint = f", fingerprint {code(arm.fingerprint[:12])}" if arm.fingerprint else ""
        yield f"arm {code(arm.name)}: {code(arm.model)}, {markdown(arm_words(arm))}{fingerprint}"
    for item in result.workloads:
        note = f": {markdown(item.note)}" if item.note else ""
        yield f"workload {code(item.name)}: {item.prompts} prompts, sha256 {code(item.sha256[:12])}{note}"
    yield from map(markdown_sentence, result.notes)
