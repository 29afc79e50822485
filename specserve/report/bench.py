"""A benchmark's report for the terminal and as markdown."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.result import Result, Verdict, result_text
from specserve.report.benchview import (
    LEGEND,
    Row,
    Section,
    arm_words,
    basis,
    headlines,
    machine,
    promise_words,
    sections,
    speedup_words,
    stops,
    tails,
    undecided,
    where,
)
from specserve.report.console import (
    NONE,
    WIDTH,
    columns,
    distinct,
    filled,
    in_one_line,
    json_text,
    moment,
    number,
    once,
    pair_ms,
    pair_s,
    percent,
    rate,
    styled,
    took,
    width_of,
)
from specserve.report.html import code, code_cell, escaped, markdown, markdown_sentence

FORMS = ("text", "markdown", "html", "json")


def rendered(result: Result, *, form: str, stream: TextIO | None = None) -> str:
    """The report; `stream` says whether the text is coloured (stdout, if not given). Ends with a line break."""
    match form:
        case "json":
            return without_user(json_text(result_text(result)))
        case "html":
            from specserve.report.benchhtml import html_report

            return html_report(result)
        case "markdown":
            return markdown_report(result)

    return without_user(benchmark_text(result, stream=stream))


_COLOURS = {Verdict.PAYS.value: "green", Verdict.COSTS.value: "red", Verdict.INCONCLUSIVE.value: "yellow"}
_STATES = {"kept": "green", "missed": "red", "not decided": "yellow"}
_NAMES = (28, 24, 20, 16, 13)
"""Columns that an arm's name may get in a table: as many as 80 have room for."""


def benchmark_text(result: Result, *, stream: TextIO | None = None) -> str:
    """The whole report; coloured where the stream is a terminal."""
    stream = stream or sys.stdout
    names = _names(result)
    parts = [_head(result, names, stream)]
    parts += [_section_text(result, section, names, stream) for section in sections(result)]
    parts += [_promises_text(result, stream), _notes(result, stream), _end(result, stream)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _names(result: Result) -> dict[str, str]:
    """The arms as the tables call them."""
    names: dict[str, str] = {}
    for most in _NAMES:
        names = distinct([in_one_line(arm.name) for arm in result.arms], most)
        tables = [
            line
            for section in sections(result)
            for line in (*_speedups(section, names, io.StringIO()), *_latencies(section, names))
        ]
        if width_of(tables) <= WIDTH:
            break
    return names


def _head(result: Result, names: Mapping[str, str], stream: TextIO) -> str:
    versions = f"vLLM {result.versions['vllm']}" if "vllm" in result.versions else "vLLM of unknown version"
    told = ", ".join([moment(result.created), took(result.duration_s), machine(result), versions])
    lines = [f"Benchmark of {in_one_line(result.name)}", _line(told, "  ", stream)]
    if not result.is_complete:
        lines.append(_line("not complete: some cells are still to be measured", "  ", stream))
    models = dict.fromkeys(arm.model for arm in result.arms if arm.model)
    lines += [_line(f"target {model}", "  ", stream) for model in models]
    width = max(map(len, names.values()), default=0)
    for arm in result.arms:
        name = in_one_line(arm.name)
        full = f" ({name})" if names[name] != name else ""
        lines.append(_line(arm_words(arm) + full, f"  {names[name].ljust(width)}  ", stream))
    return "\n".join(lines)


def _section_text(result: Result, section: Section, names: Mapping[str, str], stream: TextIO) -> str:
    title = in_one_line(f"{section.title} (load: {section.load_words})")
    lines = [styled(title, "bold", stream=stream)]
    lines += list(_speedups(section, names, stream))
    lines += ["", "  p50/p99 of requests", *_latencies(section, names)]
    after = [f"{arm_at(row, names)}: {why}" for row, why in (*undecided(section), *tails(section))]
    after += [f"{_named(arm, names)}: {clause}" for arm, clause in stops(result, section)]
    return "\n".join([*lines, *([""] if after else []), *(_line(item, "  ", stream) for item in after)])


def _speedups(section: Section, names: Mapping[str, str], stream: TextIO) -> Iterator[str]:
    head = ("load", "arm", "tokens/s", "speedup, 95 %", "verdict", "length", "needed")
    rows = [
        (
            shown,
            _named(row.arm, names),
            NONE
            if row.cell.invalid or row.cell.figures is None
            else rate(row.cell.figures.output_tokens_per_s),
            speedup_words(row),
            row.verdict,
            number(row.comparison.mean_acceptance_length) if row.comparison else "",
            number(row.comparison.break_even_mean_acceptance_length) if row.comparison else "",
        )
        for row, shown in zip(section.rows, once(row.load for row in section.rows), strict=True)
    ]
    first, *lines = columns(head, rows, left=("arm", "verdict"))
    yield first
    for line, row in zip(lines, section.rows, strict=True):
        colour = _COLOURS.get(row.verdict)
        before, word, rest = line.partition(row.verdict) if colour else (line, "", "")
        yield f"{before}{styled(word, colour, stream=stream)}{rest}" if colour else line


def _latencies(section: Section, names: Mapping[str, str]) -> list[str]:
    """Latencies, and goodput and cost where they were asked for; in a table of their own where 80 columns end."""
    found = [(row, row.cell.figures) for row in section.rows if row.cell.figures and not row.cell.invalid]
    if not found:
        return []
    known = [item for _, item in found]
    own = {"load": once(row.load for row, _ in found), "arm": [_named(row.arm, names) for row, _ in found]}
    latencies = {
        "TTFT, ms": [pair_ms(item.ttft_ms) for item in known],
        "TPOT, ms": [pair_ms(item.tpot_ms) for item in known],
        "E2E, s": [pair_s(item.e2e_ms) for item in known],
        "accepted": [percent(item.acceptance.acceptance_rate) if item.acceptance else "" for item in known],
    }
    wanted = {
        "goodput/s": [rate(item.goodput_per_s) for item in known],
        "cost/M": [number(item.cost_per_million_tokens) for item in known],
        "failed": [str(item.failed_requests) if item.failed_requests else NONE for item in known],
    }
    extras = {name: cells for name, cells in wanted.items() if set(cells) != {NONE}}
    together = _table(own | latencies | extras)
    if not extras or width_of(together) <= WIDTH:
        return together
    return [*_table(own | latencies), "", *_table(own | extras)]


def _table(by_name: Mapping[str, Sequence[str]]) -> list[str]:
    return columns(tuple(by_name), list(zip(*by_name.values(), strict=True)), left=("arm",))


def _promises_text(result: Result, stream: TextIO) -> str:
    if not result.promises:
        return ""
    lines = [styled("Promises", "bold", stream=stream)]
    for promise in result.promises:
        state, promised, measured = promise_words(promise)
        found = f", measured {measured}" if measured else ""
        place = f" ({in_one_line(promise.place)})" if promise.place else ""
        words = in_one_line(f"{promised} on {where(promise.point)}{found}") + place
        lead = f"  {state.ljust(14)}"
        shown = (
            f"  {styled(state, _STATES[state], stream=stream)}{' ' * (14 - len(state))}"
            if state in _STATES
            else None
        )
        lines.append(filled(words, lead=lead, shown=shown, stream=stream))
    return "\n".join(lines)


def _notes(result: Result, stream: TextIO) -> str:
    notes = [f"{item.name}: {item.note}" for item in result.workloads if item.note]
    notes += [*result.notes, *_unplaced_stops(result)]
    return "\n".join(_line(note, "note: ", stream) for note in notes)


def _unplaced_stops(result: Result) -> Iterator[str]:
    placed = {clause for section in sections(result) for _, clause in stops(result, section)}
    return (f"{key}: {clause}" for key, clause in result.stops_paying.items() if clause not in placed)


def _end(result: Result, stream: TextIO) -> str:
    lines = [_line(line, "", stream) for line in headlines(result)]
    if result.comparisons:
        lines.insert(0, _line(LEGEND, "", stream) + "\n")
    return "\n".join([*lines, _line(basis(result), "", stream)])


def arm_at(row: Row, names: Mapping[str, str]) -> str:
    """`profile at 16`."""
    return f"{_named(row.arm, names)} at {row.load}"


def _named(arm: str, names: Mapping[str, str]) -> str:
    return names.get(in_one_line(arm), in_one_line(arm)[: _NAMES[-1]])


def _line(words: str, lead: str, stream: TextIO) -> str:
    return filled(in_one_line(words), lead=lead, stream=stream)


_HEAD = (
    *("load", "arm", "tokens/s", "speedup, 95 %", "verdict", "accepted", "length", "needed"),
    *("TTFT ms", "TPOT ms", "E2E s"),
)
_NUMBERS = frozenset(_HEAD) - {"arm", "verdict"}


def markdown_report(result: Result) -> str:
    """The whole report; everything from outside is escaped."""
    parts = [f"### Benchmark of {markdown(result.name)}"]
    parts.append("\n".join(f"- {markdown(line)}" for line in headlines(result)))
    parts += [_section_markdown(result, section) for section in sections(result)]
    parts += [_promises_markdown(result), _details(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[str] = frozenset()
) -> str:
    """A table of cells that are markdown already."""
    rule = ["---:" if name in numbers else "---" for name in head]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _section_markdown(result: Result, section: Section) -> str:
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


def _promises_markdown(result: Result) -> str:
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
