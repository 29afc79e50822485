"""What a tune found, and what one would launch."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specserve.measure.intervals import Estimate
from specserve.measure.tune.plan import ROUNDS, TunePlan, loads_of
from specserve.measure.tune.result import TuneResult
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS
from specserve.report.charts import Chart
from specserve.report.page import Block, Document, Items, Paragraph, Section
from specserve.report.text import (
    DASH,
    Column,
    Table,
    decimals,
    duration,
    json_document,
    moment,
    with_spread,
)

_LEGEND = "m: measured, in turns with the server without speculation; p: predicted"


def result_json(found: TuneResult) -> str:
    """Return the result for scripts and for the run directory."""
    return json_document(found) + "\n"


def result_files(found: TuneResult) -> dict[str, str]:
    """Return what the run directory gets, by file name."""
    return {"result.json": result_json(found), "report.html": tune_document(found).html()}


def tune_document(found: TuneResult) -> Document:
    """Return the report: the answer first, then every K at every load."""
    choice = found.choice
    lines = list(_by_load(found))
    if choice.speculation is not None and choice.setting is not None:
        lines.insert(0, ("speculation", f"`{json.dumps(choice.setting.keys)}`"))
    places = dict.fromkeys((row.point.workload, row.point.temperature) for row in found.rows)
    notes = [("missing", text) for text in found.missing]
    notes += [("note", text) for text in found.notes]
    about = (
        f"{found.host.get('accelerator', 'cpu')}, vLLM {found.versions.get('vllm', '?')}, "
        f"{moment(found.created)}, {duration(found.duration_s)}, {found.launches} launches"
    )
    sections = [_place(found, *place) for place in places]
    blocks: list[Block] = [Items(lines), *sections, Items(notes), Paragraph(about)]
    return Document("tune", found.name, blocks, [(choice.verdict.word, _answer(found))])


def _answer(found: TuneResult) -> str:
    """Return what to do."""
    choice, mean = found.choice, with_spread(found.choice.speedup, unit="x")
    if choice.verdict.word == PAYS and choice.setting is not None:
        where = "" if len(found.tokens_per_s_without) < 2 else " (the mean over all points)"
        return f"{choice.setting.words}: {mean} the tokens/s of no speculation{where}"
    if choice.verdict.word != INCONCLUSIVE:
        return f"run without speculation: {choice.verdict.sentence} ({mean})"
    so_far = f" ({mean} so far)" if choice.speedup else ""
    more = "the same command with a longer `--budget` measures what is missing"
    return f"{choice.verdict.sentence}{so_far}; {more}"


def _by_load(found: TuneResult) -> Iterator[tuple[str, str]]:
    """Yield what the choice gives at each point, and where another K is better."""
    if (setting := found.choice.setting) is None:
        return
    for row in found.rows:
        load = row.point.concurrency
        is_low = setting.last_batch is None or load <= setting.last_batch
        if row.num_speculative_tokens != (setting.tokens if is_low else setting.tokens_above):
            continue
        judged = row.verdict.word if row.verdict else "predicted"
        words = f"{with_spread(row.speedup, unit='x')}, {judged}"
        best = found.choice.best_by_concurrency.get(load, row.num_speculative_tokens)
        if judged == COSTS:
            words += "; send such load to a server without speculation"
        elif best != row.num_speculative_tokens:
            alone = f"K = {best}" if best else "no speculation"
            words += f"; at this load alone, {alone} is best"
        yield str(row.point), words


def _place(found: TuneResult, workload: str, temperature: float) -> Section:
    """Return every K on one workload and temperature."""
    place = (workload, temperature)
    here = [row for row in found.rows if (row.point.workload, row.point.temperature) == place]
    by_place = {(row.num_speculative_tokens, row.point.concurrency): row for row in here}
    loads = loads_of([row.point for row in here])
    tokens = sorted({row.num_speculative_tokens for row in here})
    without = [found.tokens_per_s_without.get(f"{workload}/{temperature:g}/{at}") for at in loads]
    rows = [["0", "1.00", *(f"{decimals(rate, 1)} tokens/s" for rate in without)]]
    curves: dict[str, dict[str, Estimate]] = {f"concurrency {load}": {} for load in loads}
    for k in tokens:
        cells, length = list[str](), DASH
        for load in loads:
            row = by_place.get((k, load))
            if row is None:
                cells.append(DASH)
                continue
            sign = "m" if row.verdict else "p"
            cells.append(f"{decimals(row.speedup.value)}{sign}")
            length = decimals(row.mean_acceptance_length) if length == DASH else length
            curves[f"concurrency {load}"][str(k)] = row.speedup
        rows.append([str(k), length, *cells])
    columns = [Column(name) for name in ("K", "tokens per step", *map(str, loads))]
    unit = "times the tokens/s of no speculation, measured and predicted"
    chart = Chart("Speedup by K", unit, "K", curves)
    title = f"{workload}, temperature {temperature:g}: speedup by K and concurrency"
    return Section(title, [Table(columns, rows), Paragraph(_LEGEND), chart])


def plan_document(plan: TunePlan) -> Document:
    """Return what would be launched and sent."""
    servers = [
        (each.name, " ".join(each.plan.argv)) for each in (plan.baseline, plan.largest) if each.plan
    ]
    if plan.most_tokens > 1:
        servers.append(("best", "the K that these two predict to be the best, unless it is K_max"))
    turns = "in turns with the first" if plan.room.together else "one after another"
    answer = (
        f"This is a dry run: nothing is started. It would take about {duration(_seconds(plan))} of "
        f"a budget of {duration(plan.budget_s)} (assumed, not measured)."
    )
    points = Items([("", str(point)) for point in plan.points])
    blocks: list[Block] = [
        Section(f"servers, {turns} ({plan.room.why})", [Items(servers)]),
        Section(f"points, up to {ROUNDS} blocks each", [points]),
    ]
    if (plan.place / "run.json").is_file():
        blocks.append(Paragraph(f"the same command resumes the run in {plan.place}"))
    return Document("tune", plan.name, blocks, [("", answer)])


def plan_json(plan: TunePlan) -> str:
    """Return the same for scripts."""
    servers = [each for each in (plan.baseline, plan.largest) if each.plan]
    content = {
        "servers": [{"name": each.name, "argv": each.plan and each.plan.argv} for each in servers],
        "most_tokens": plan.most_tokens,
        "points": plan.points,
        "seconds_assumed": _seconds(plan),
        "budget_s": plan.budget_s,
        "run": str(plan.place),
    }
    return json_document(content)


def _seconds(plan: TunePlan) -> float:
    return min(plan.seconds(plan.per_slot), plan.budget_s)
