"""What a tune found, what one would launch, and what one may bring, estimated."""

from __future__ import annotations

import json
import sys

from specserve.measure.intervals import Estimate
from specserve.measure.tune.estimate import TuneEstimate
from specserve.measure.tune.plan import ROUNDS, TunePlan
from specserve.measure.tune.run import TuneResult
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS
from specserve.report.charts import Chart
from specserve.report.page import Block, Document, Items, Section
from specserve.report.text import (
    DASH,
    Column,
    Table,
    duration,
    figure,
    json_document,
    with_spread,
)
from specserve.vllm.speculation import METHODS


def result_files(found: TuneResult) -> dict[str, str]:
    """Return what the run directory gets, by file name."""
    return {"result.json": json_document(found) + "\n", "report.html": tune_document(found).html()}


def tune_document(found: TuneResult) -> Document:
    """Return the report: the answer first, then every K at every load."""
    choice = found.choice
    lines = []
    if choice.speculation is not None and choice.setting is not None:
        lines.append(("speculation", f"`{json.dumps(choice.setting.keys)}`"))
    for row in found.rows:
        is_chosen = choice.setting and row.num_speculative_tokens == choice.setting.tokens
        if is_chosen and row.verdict is not None and row.verdict.word == COSTS:
            where = f"on {row.point}: send such load to a server without speculation"
            lines.append((COSTS, where))
    places = dict.fromkeys((row.point.workload, row.point.temperature) for row in found.rows)
    notes = [("missing", text) for text in found.missing]
    notes += [("note", text) for text in found.notes]
    about = (
        f"{found.host.get('accelerator', 'cpu')}, vLLM {found.host.get('vllm', '?')}, "
        f"{found.created[:10]}, {duration(found.duration_s)}, {found.launches} launches"
    )
    sections = [_place(found, *place) for place in places]
    blocks: list[Block] = [Items(lines), *sections, Items(notes), about]
    return Document("tune", found.name, blocks, [(choice.verdict.word, _answer(found))])


def _answer(found: TuneResult) -> str:
    """Return what to do."""
    choice, mean = found.choice, with_spread(found.choice.speedup, "x")
    if choice.verdict.word == PAYS and choice.setting is not None:
        where = "" if len({row.point for row in found.rows}) < 2 else " (the mean over all points)"
        return f"{choice.setting.words}: {mean} the tokens/s of no speculation{where}"
    if choice.verdict.word != INCONCLUSIVE:
        return f"run without speculation: {choice.verdict.sentence} ({mean})"
    so_far = f" ({mean} so far)" if choice.speedup else ""
    more = "`specserve bench` measures it until it is clear"
    if found.missing:
        more = "the same command with a longer `--budget` measures what is missing"
    return f"{choice.verdict.sentence}{so_far}; {more}"


def _place(found: TuneResult, workload: str, temperature: float) -> Section:
    """Return every K at every load of one workload and temperature."""
    place = (workload, temperature)
    here = [row for row in found.rows if (row.point.workload, row.point.temperature) == place]
    here.sort(key=lambda row: (row.point.concurrency, row.num_speculative_tokens))
    rows, curves = list[list[str]](), dict[str, dict[str, Estimate]]()
    for row in here:
        load, k = str(row.point.concurrency), str(row.num_speculative_tokens)
        if f"concurrency {load}" not in curves:
            rows.append([load, "0", "1.00", "1.00x", ""])
        length, speedup = figure(row.mean_acceptance_length), with_spread(row.speedup, "x")
        rows.append([load, k, length, speedup, row.verdict.word if row.verdict else "predicted"])
        curves.setdefault(f"concurrency {load}", {})[k] = row.speedup
    names = ("load", "K", "tokens per step", "speedup, 95 %")
    table = Table([*map(Column, names), Column("verdict", "name")], rows, keys=2)
    chart = Chart("Speedup by K", "times the tokens/s of no speculation", "K", curves)
    return Section(f"{workload}, temperature {temperature:g} (load: concurrency)", [table, chart])


def plan_document(plan: TunePlan) -> Document:
    """Return what would be launched and sent."""
    servers = [
        (each.name, " ".join(each.plan.argv)) for each in (plan.baseline, plan.largest) if each.plan
    ]
    if plan.most_tokens > 1:
        servers.append(("best", "the K that these two predict to be the best, unless it is K_max"))
    turns = "in turns with the first" if plan.together else "one after another"
    seconds = min(plan.seconds(plan.per_slot), plan.budget_s)
    answer = (
        f"This is a dry run: nothing is started. It would take about {duration(seconds)} of a "
        f"budget of {duration(plan.budget_s)} (assumed, not measured)."
    )
    points = Items([("", str(point)) for point in plan.points])
    blocks = [
        Section(f"servers, {turns}", [Items(servers)]),
        Section(f"points, up to {ROUNDS} blocks each", [points]),
    ]
    return Document("tune", plan.name, blocks, [("", answer)])


def estimate_text(found: TuneEstimate) -> str:
    """Return an estimate: the answer at the lowest load, then every load."""
    first = found.points[0]
    answer = f"K = {first.num_speculative_tokens}, {with_spread(first.speedup, 'x')}"
    if not first.num_speculative_tokens:
        answer = "no K is faster than no speculation"
    answer += (
        f" at concurrency {first.concurrency} ({found.method} on {found.count}x "
        f"{found.accelerator}, acceptance {found.acceptance:.2f} at every position, "
        f"{found.context_tokens:,} tokens of context)"
    )
    rows = []
    for point in found.points:
        k = point.num_speculative_tokens
        speedup = with_spread(point.speedup, "x") if k else DASH
        rows.append([str(point.concurrency), str(k), speedup])
    names = ("requests", "K", "speedup")
    legend = (
        "The range covers what engines and cards reach; it is no confidence interval. Prefill is "
        f"left out. At most {found.most_requests:,} such requests run at once."
    )
    if METHODS[found.method].draft == "text":
        legend += " An upper limit: every step is taken to find a match."
    blocks: list[Block] = [Table([*map(Column, names)], rows, keys=2), legend]
    answers = [("Estimated, not measured", answer)]
    return Document("estimate", found.method, blocks, answers).text(sys.stdout)
