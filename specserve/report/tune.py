"""What a tune found, and what one would launch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from specserve.measure.tune.choose import Row
from specserve.measure.tune.plan import ROUNDS, TunePlan, loads_of
from specserve.measure.tune.result import TuneResult
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS
from specserve.report.charts import Chart, Series, Value, clean_value, other_colour
from specserve.report.page import (
    Block,
    Charts,
    Document,
    Items,
    Paragraph,
    Section,
    Verbatim,
    html_page,
)
from specserve.report.text import (
    DASH,
    Column,
    Table,
    decimals,
    duration,
    json_document,
    json_values,
    moment,
    with_spread,
)

_LEGEND = "m: measured, in turns with the server without speculation; p: predicted; *: chosen"


def result_json(found: TuneResult) -> str:
    """Return the result for scripts and for the run directory."""
    content = {"kind": "tune", **json_values(found, digits=6)}
    return json_document(content) + "\n"


def result_files(found: TuneResult) -> dict[str, str]:
    """Return what the run directory gets, by file name."""
    return {"result.json": result_json(found), "report.html": html_page(tune_document(found))}


def tune_document(found: TuneResult) -> Document:
    """Return the report: the answer first, then every K at every load."""
    choice = found.choice
    blocks: list[Block] = [Paragraph(answer(found))]
    if choice.speculation is not None and choice.setting is not None:
        lines = [f"{key}: {json.dumps(value)}" for key, value in choice.setting.keys.items()]
        blocks.append(Verbatim("\n".join(lines)))
    blocks.append(Items(list(_by_load(found))))
    for place in dict.fromkeys((row.point.workload, row.point.temperature) for row in found.rows):
        blocks.append(_place(found, *place))
    machine = found.host.get("accelerator", "cpu")
    about = (
        f"{machine}, vLLM {found.versions.get('vllm', '?')}, {moment(found.created)}, "
        f"{duration(found.duration_s)}, {found.launches} launches"
    )
    notes = [("missing", text) for text in found.missing]
    notes += [("note", text) for text in found.notes]
    blocks += [Items(notes), Paragraph(about, is_muted=True)]
    return Document("tune", found.name, blocks, has_answer=True)


def answer(found: TuneResult) -> str:
    """Say what to do, in one sentence."""
    choice, mean = found.choice, with_spread(found.choice.speedup, unit="x")
    if choice.verdict.word == PAYS and choice.setting is not None:
        where = "" if len(found.tokens_per_s_without) < 2 else " (the mean over all points)"
        return f"PAYS: {choice.setting.words}: {mean} the tokens/s of no speculation{where}"
    if choice.verdict.word != INCONCLUSIVE:
        why = f"{choice.verdict.sentence} ({mean})"
        return f"{choice.verdict.word}: run without speculation: {why}"
    so_far = f" ({mean} so far)" if choice.speedup else ""
    return (
        f"INCONCLUSIVE: {choice.verdict.sentence}{so_far}; the same command with a longer "
        "`--budget` measures what is missing"
    )


def _by_load(found: TuneResult) -> Iterator[tuple[str, str]]:
    """What the choice gives at each load, and where another K is better."""
    setting = found.choice.setting
    for row in found.rows:
        if setting is None or row.num_speculative_tokens != setting.tokens:
            continue
        if setting.last_batch is not None and (row.point.concurrency or 1) > setting.last_batch:
            continue
        load = row.point.concurrency or 1
        judged = row.verdict.word if row.verdict else "predicted"
        words = f"{_name(found, row)}: {with_spread(row.speedup, unit='x')}, {judged}"
        other = found.choice.best_by_concurrency.get(load)
        if row.verdict and row.verdict.word == COSTS:
            words += "; send such load to a server without speculation"
        elif other not in (None, row.num_speculative_tokens):
            words += (
                f"; at this load alone, {f'K = {other}' if other else 'no speculation'} is best"
            )
        yield f"concurrency {load}", words


def _name(found: TuneResult, row: Row) -> str:
    several = len({each.point.temperature for each in found.rows}) > 1
    return f"{row.point.workload}, T = {row.point.temperature:g}" if several else row.point.workload


def _place(found: TuneResult, workload: str, temperature: float) -> Section:
    """Every K on one workload and temperature."""
    here = [
        row
        for row in found.rows
        if (row.point.workload, row.point.temperature) == (workload, temperature)
    ]
    loads = loads_of([row.point for row in here])
    by_place = {(row.num_speculative_tokens, row.point.concurrency): row for row in here}
    tokens = sorted({row.num_speculative_tokens for row in here})
    head = [Column("K"), Column("tokens per step"), *(Column(str(load)) for load in loads)]
    without = [found.tokens_per_s_without.get(f"{workload}/{temperature:g}/{at}") for at in loads]
    shown = [("0", "1.00", *(f"{decimals(rate, 1)} tokens/s" for rate in without))]
    for k in tokens:
        cells = [by_place.get((k, load)) for load in loads]
        length = next((decimals(row.mean_acceptance_length) for row in cells if row), DASH)
        shown.append((str(k), length, *(_cell(found, row) for row in cells)))
    return Section(
        f"{workload}, temperature {temperature:g}: speedup by K and concurrency",
        [
            Table(head, shown, keys=1),
            Paragraph(_LEGEND, is_muted=True),
            Charts([_chart(here, loads, tokens)]),
        ],
    )


def _cell(found: TuneResult, row: Row | None) -> str:
    if row is None:
        return DASH
    setting, star = found.choice.setting, ""
    if setting is not None:
        is_low = setting.last_batch is None or (row.point.concurrency or 1) <= setting.last_batch
        chosen = setting.tokens if is_low else setting.tokens_above
        star = "*" if row.num_speculative_tokens == chosen else ""
    return f"{star}{decimals(row.speedup.value)}{'m' if row.verdict else 'p'}"


def _chart(rows: Sequence[Row], loads: Sequence[int], tokens: Sequence[int]) -> Chart:
    by_place = {(row.point.concurrency, row.num_speculative_tokens): row.speedup for row in rows}

    def value(load: int, k: int) -> Value | None:
        known = by_place.get((load, k))
        return clean_value(known.value, known.low, known.high) if known else None

    series = [
        Series(
            f"concurrency {load}",
            other_colour(index),
            tuple(value(load, k) for k in tokens),
        )
        for index, load in enumerate(loads)
    ]
    unit = "over no speculation, measured and predicted"
    return Chart("lines", "Speedup by K", unit, "K", [str(k) for k in tokens], series, 1.0)


def plan_document(plan: TunePlan) -> Document:
    """Return what would be launched and sent."""
    servers = [
        (each.name, " ".join(each.plan.argv)) for each in (plan.baseline, plan.largest) if each.plan
    ]
    if plan.most_tokens > 1:
        servers.append(("best", "the K that these two predict to be the best, unless it is K_max"))
    points = [
        (point.workload, f"concurrency {point.concurrency}, temperature {point.temperature:g}")
        for point in plan.points
    ]
    guess_s = min(plan.seconds(plan.per_slot), plan.budget_s)
    turns = "in turns with the first" if plan.room.together else "one after another"
    blocks: list[Block] = [
        Paragraph(
            f"This is a dry run: nothing is started. It would take about {duration(guess_s)} of a "
            f"budget of {duration(plan.budget_s)} (assumed, not measured)."
        ),
        Section(f"servers, {turns} ({plan.room.why})", [Items(servers)]),
        Section(f"points, up to {ROUNDS} blocks each", [Items(points)]),
    ]
    if (plan.place / "run.json").is_file():
        blocks.append(Paragraph(f"the same command resumes the run in {plan.place}"))
    return Document("tune", plan.name, blocks)


def plan_json(plan: TunePlan) -> str:
    """Return the same for scripts."""
    servers = [each for each in (plan.baseline, plan.largest) if each.plan]
    content = {
        "kind": "tune-plan",
        "servers": [{"name": each.name, "argv": each.plan and each.plan.argv} for each in servers],
        "most_tokens": plan.most_tokens,
        "points": plan.points,
        "together": plan.room.together,
        "seconds_assumed": min(plan.seconds(plan.per_slot), plan.budget_s),
        "budget_s": plan.budget_s,
        "run": str(plan.place),
    }
    return json_document(content)
