"""What a tune found, and what one would launch."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specserve.measure.intervals import Estimate
from specserve.measure.tune.plan import ROUNDS, TunePlan
from specserve.measure.tune.result import TuneResult
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS
from specserve.report.charts import Chart
from specserve.report.page import Block, Document, Items, Paragraph, Section
from specserve.report.text import (
    Column,
    Table,
    decimals,
    duration,
    json_document,
    moment,
    with_spread,
)


def result_json(found: TuneResult) -> str:
    """Return the result for scripts and for the run directory."""
    return json_document(found) + "\n"


def result_files(found: TuneResult) -> dict[str, str]:
    """Return what the run directory gets, by file name."""
    return {"result.json": result_json(found), "report.html": tune_document(found).html()}


def tune_document(found: TuneResult) -> Document:
    """Return the report: the answer first, then every K at every load."""
    choice = found.choice
    lines = list(_costs(found))
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


def _costs(found: TuneResult) -> Iterator[tuple[str, str]]:
    """Yield the points at which the choice is slower than no speculation."""
    setting = found.choice.setting
    for row in found.rows:
        is_chosen = setting is not None and row.num_speculative_tokens == setting.tokens
        if is_chosen and row.verdict is not None and row.verdict.word == COSTS:
            yield COSTS, f"on {row.point}: send such load to a server without speculation"


def _place(found: TuneResult, workload: str, temperature: float) -> Section:
    """Return every K at every load of one workload and temperature."""
    place = (workload, temperature)
    here = [row for row in found.rows if (row.point.workload, row.point.temperature) == place]
    here.sort(key=lambda row: (row.point.concurrency, row.num_speculative_tokens))
    rows, curves = list[list[str]](), dict[str, dict[str, Estimate]]()
    for row in here:
        load, k = str(row.point.concurrency), str(row.num_speculative_tokens)
        if f"concurrency {load}" not in curves:
            without = found.tokens_per_s_without.get(f"{workload}/{temperature:g}/{load}")
            rows.append([load, "0", "1.00", f"{decimals(without, 1)} tokens/s", ""])
        length, speedup = decimals(row.mean_acceptance_length), with_spread(row.speedup, unit="x")
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


def plan_json(plan: TunePlan) -> str:
    """Return the same for scripts."""
    servers = [each for each in (plan.baseline, plan.largest) if each.plan]
    content = {
        "servers": [{"name": each.name, "argv": each.plan and each.plan.argv} for each in servers],
        "most_tokens": plan.most_tokens,
        "points": plan.points,
        "seconds_assumed": min(plan.seconds(plan.per_slot), plan.budget_s),
        "budget_s": plan.budget_s,
    }
    return json_document(content)
