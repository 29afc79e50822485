"""What `bench` and `tune` show: what they would do, how far they are, and their reports."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from specserve.errors import without_user
from specserve.measure.bench.passes import Progress, requests_in_round
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Cell, Comparison, Figures, Point, Result, VariantInfo
from specserve.measure.bench.summary import WAITING
from specserve.measure.tune.estimate import TuneEstimate
from specserve.measure.tune.plan import ROUNDS, TunePlan
from specserve.measure.tune.run import TuneResult
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.verdict import COSTS, INCONCLUSIVE, PAYS, Estimate
from specserve.measure.watch import promise_words
from specserve.memory.estimate import DraftCost
from specserve.report.console import LiveLine, in_one_line, say
from specserve.report.page import Block, Chart, Document, Items, Section, render
from specserve.report.text import DASH, Column, Table, duration, figure, json_document, with_spread
from specserve.vllm.speculation import METHODS

_TOKENS = 256
"""Of an answer, if nothing limits it."""
_CELL = (Column("load"), Column("variant", "name"))
_SPEEDUP = (Column("speedup, 95 %"), Column("verdict", "name"))
_HEAD = (*_CELL, Column("tokens/s"), *_SPEEDUP, *map(Column, ("per step", "needed", "goodput")))
_LATENCIES = ("TTFT, ms", "TPOT, ms", "E2E, ms", "accepted", "waited, ms", "preempted", "failed")


def variant_words(variant: VariantInfo) -> str:
    """Return how a variant speculates: `draft_model K=5, meta-llama/Llama-3.1-8B-Instruct`."""
    block = variant.speculation
    if block is None:
        is_other = variant.url and not variant.is_baseline
        return "a server that runs already" if is_other else "no speculation"
    tokens, draft = block.get("num_speculative_tokens"), block.get("model")
    words = f"{block.get('method')}{f' K={tokens}' if tokens else ''}"
    return f"{words}, {draft}" if draft else words


def bench_plan(plan: BenchPlan) -> str:
    """Return what a benchmark would do, and in at least how long."""

    def requests(point: Point) -> int:
        """To one variant, in one round."""
        prompts = plan.prompts[point.workload]
        return requests_in_round(point, blocks=plan.blocks, prompts=prompts)

    speed = ASSUMED_SPEEDS[plan.platform or "cuda"]
    measured = [name for session in plan.sessions for name in session.variants]
    started = [each.name for each in plan.variants if each.plan is not None]
    launches = sum(name in started for name in measured)
    round_s = len(measured) * sum(
        requests(point) / point.request_rate
        if point.request_rate
        else speed.seconds(requests(point) * (plan.max_tokens or _TOKENS), point.concurrency)
        for point in plan.points
    )
    minutes = math.ceil((launches * speed.start_s + min(round_s, plan.budget_s)) / 60)
    answer = (
        f"This is a dry run: nothing is started. It would take about {minutes} min (assumed, not "
        f"measured: {speed.start_s:g} s a launch, {speed.tokens_per_s:g} tokens/s a request)."
    )
    if not plan.request.quick:
        answer += (
            f" If that decides nothing, it measures on for up to {duration(plan.budget_s)} in all "
            "(`--budget`), launches not counted."
        )
    variants = [(each.name, each.url or variant_words(each.info)) for each in plan.variants]
    together = [("", ", ".join(each.variants)) for each in plan.sessions]
    points = [("", f"{each}: {requests(each)} requests in a launch") for each in plan.points]
    blocks = [
        Section("variants", [Items(variants)]),
        Section(f"launches: {launches}", [Items(together)]),
        Section(f"points, {plan.blocks} blocks each, on every variant in turn", [Items(points)]),
    ]
    return Document("benchmark", plan.name, blocks, [("", answer)]).text(sys.stdout)


class BenchView(LiveLine):
    """Shows what happens; a context manager that leaves no half line behind."""

    def __init__(self) -> None:
        super().__init__(every_s=15.0)

    def __call__(self, what: Progress) -> None:
        """Show what is being done, or keep a note."""
        if what.is_note:
            say(in_one_line(what.text))
        elif not what.total:
            self.show(what.text)
        elif what.done == what.total:
            say(in_one_line(f"{what.done}/{what.total}, done; {what.text}"))
        else:
            left = "the time is up" if what.left_s < 1 else f"about {duration(what.left_s)} left"
            self.show(f"{what.done}/{what.total}, {left}; {what.text}")


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
    plain = next((each for each in result.variants if each.is_baseline), VariantInfo(""))
    for variant in result.variants:
        room, words = variant.kv_cache_tokens, variant_words(variant)
        both = [one.kv_cache_requests or 0.0 for one in (variant, plain)]
        cost = DraftCost(room or 0, plain.kv_cache_tokens or 0, *both)
        if room and not cost.is_little:
            words += f"; costs {cost}"
        elif room:
            words += f"; KV cache of {room:,} tokens"
        lines.append((variant.name, words))
        if mine := [item for item in result.comparisons if item.variant == variant.name]:
            answers.append((variant.name, _answer(result, mine)))
    machine = result.host.get("accelerator", "cpu")
    if machine == "cpu":
        machine = f"{result.host.get('cores', '?')} CPU cores"
    launches = f"{result.launches} {'launch' if result.launches == 1 else 'launches'}"
    where = f"{machine}, vLLM {result.host.get('vllm', '?')}, {launches} of each variant"
    lines.append(("measured", f"{where}, {result.created[:10]}, {duration(result.duration_s)}"))
    blocks: list[Block] = [Items(lines)]
    if not result.is_complete:
        blocks.insert(0, "Not complete: some cells are still to be measured.")
    places = dict.fromkeys((cell.point.workload, cell.point.temperature) for cell in result.cells)
    blocks += [_section(result, *place, against) for place in places]
    speed = f"speedup: output tokens/s over those of {against}"
    last = "needed: the length at which speculation breaks even (never below 1)"
    if any(cell.point.request_rate for cell in result.cells):
        speed = f"speedup: E2E P50 of {against} over the variant's (tokens/s follow the rate)"
        last = "goodput: requests within the limits of `expect`; a P99 takes 368 requests"
    blocks.append(f"{speed}; per step: mean acceptance length; {last}")
    found = [("stops paying", f"{name}: {why}") for name, why in result.stops_paying.items()]
    for cell in result.cells:
        for each in cell.promises:
            found.append((each.kept.value, f"{cell.point}: {promise_words(each)}"))
    found += [("note", note) for note in result.notes]
    method = list(result.host.items())
    method += [(name, f"prompts of sha256 {mark[:16]}") for name, mark in result.workloads.items()]
    method += [(each.name, f"`{shlex.join(each.argv)}`") for each in result.variants if each.argv]
    blocks += [Items(found), Section("How this was measured", [Items(method)], is_folded=True)]
    return Document("benchmark", result.name, blocks, answers)


def _answer(result: Result, mine: Sequence[Comparison]) -> str:
    """Return how often a variant pays, its worst and its best point, and what to do."""
    counts = Counter(item.verdict.word.lower() for item in mine)
    parts = list(counts)
    if len(mine) > 1:
        often = ", ".join(f"{words} at {number}" for words, number in counts.items())
        parts = [f"{often} of {len(mine)} points"]
    known = [(item.speedup, item.point) for item in mine if item.speedup]
    known.sort(key=lambda item: item[0].value)
    if len(known) == 1:
        parts.append(f"{with_spread(known[0][0], 'x')} on {known[0][1]}")
    elif known:
        for name, (speedup, point) in (("at worst", known[0]), ("at best", known[-1])):
            parts.append(f"{with_spread(speedup, 'x')} {name} on {point}")
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
    cells.sort(key=lambda cell: (cell.point.load, names.index(cell.variant)))
    rows, latencies, remarks, parts = [], [], [], []
    known = {(cell.variant, cell.point): cell.figures for cell in cells}
    at_rate, kind = bool(cells[0].point.request_rate), cells[0].point.load_kind
    speedups = dict[str, dict[str, Estimate]]()
    for cell in cells:
        item, load = compared.get((cell.variant, cell.point)), f"{cell.point.load:g}"
        share = f"{cell.goodput.value:.0%}" if cell.goodput else ""
        rows.append([load, cell.variant, *_row(cell, item), share])
        if cell.figures and not cell.invalid:
            latencies.append([load, cell.variant, *_latencies(cell.figures)])
        for words in _remarks(cell, item):
            remarks.append((cell.variant, f"at {kind} {load}, {words}"))
        if item is not None and item.speedup is not None:
            speedups.setdefault(cell.variant, {})[load] = item.speedup
        for each in item.latencies if item else ():
            both = (known[against, cell.point], cell.figures)
            found = (getattr(getattr(one, each.latency), each.quantile) for one in both)
            name = f"{each.latency.removesuffix('_ms')} {each.quantile}".upper()
            row = [load, cell.variant, name, *(figure(ms, 1) for ms in found)]
            if math.isfinite(each.speedup.high):
                row += [with_spread(each.speedup), each.verdict.word]
            else:
                row += [figure(each.speedup.value), "too few"]
            parts.append(row)
    blocks: list[Block] = [Table(_HEAD, rows, keys=2), Items(remarks)]
    if parts:
        times = (Column("latency", "name"), Column("from, ms"), Column("to, ms"))
        blocks.insert(1, Table((*_CELL, *times, *_SPEEDUP), parts, keys=2))
    if speedups:
        what = "as fast as" if at_rate else "the tokens/s of"
        unit = f"times {what} {against}, 95 % interval"
        blocks.insert(0, Chart("Speedup", unit, kind, speedups))
    if latencies:
        table = Table((*_CELL, *map(Column, _LATENCIES)), latencies, keys=2)
        blocks.append(Section("Latency (P50/P90/P99)", [table], is_folded=True))
    return Section(f"{workload}, temperature {temperature:g} (load: {kind})", blocks)


def _row(cell: Cell, item: Comparison | None) -> list[str]:
    """Return the speed and the verdict; without `item`: of what the others are compared with."""
    known = cell.figures if cell.invalid is None else None
    own = known.acceptance if known else None
    row = [figure(known.output_tokens_per_s, 1) if known else DASH]
    if item is None:
        length = figure(own.mean_acceptance_length) if own else ""
        return [*row, "", "invalid" if cell.invalid else "", length, ""]
    lengths = (item.mean_acceptance_length, item.break_even_mean_acceptance_length)
    word = "invalid" if cell.invalid else item.verdict.word
    return [*row, with_spread(item.speedup) if known else "", word, *map(figure, lengths)]


def _latencies(known: Figures) -> list[str]:
    """Return what a request took, and what became of drafts and requests."""
    times = (known.ttft_ms, known.tpot_ms, known.e2e_ms)
    row = ["/".join(figure(value, 1) for value in (each.p50, each.p90, each.p99)) for each in times]
    row.append(figure(known.acceptance.acceptance_rate) if known.acceptance else "")
    row.append(figure(known.queue_ms, 0))
    return row + [str(number or DASH) for number in (known.preemptions, known.failed_requests)]


def _remarks(cell: Cell, item: Comparison | None) -> Iterator[str]:
    """Yield why there is no verdict, who waited for room, and what a total hides."""
    known = cell.figures
    if cell.invalid is not None:
        yield f"invalid: {cell.invalid}"
        return
    if known and ((known.queue_ms or 0) > WAITING * known.e2e_ms.p50 or known.preemptions):
        waited = f"requests waited {figure(known.queue_ms, 0)} ms before they ran"
        yield f"{waited}, {known.preemptions} were preempted"
    if item is None:
        return
    if item.verdict.level == "open":
        yield f"inconclusive: {item.verdict.sentence}"


def tune_files(found: TuneResult) -> dict[str, str]:
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
    return Document("tune", found.name, blocks, [(choice.verdict.word, _best(found))])


def _best(found: TuneResult) -> str:
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
        "The range covers what engines and cards reach; it is no confidence interval. Half of the "
        "context is the prompt, half the answer."
    )
    if found.waiting:
        loads = ", ".join(map(str, found.waiting))
        legend += (
            f" No speedup at concurrency {loads}: about {found.most_requests:,} such requests run "
            "at once, and the others wait (KV cache or `max_num_seqs`)."
        )
    if found.is_draft_assumed:
        legend += " The head's files are not here: sizes are those that such heads usually have."
    if METHODS[found.method].draft == "text":
        legend += " An upper limit: every step is taken to find a match."
    blocks: list[Block] = [Table([*map(Column, names)], rows, keys=2), legend]
    answers = [("Estimated, not measured", answer)]
    return Document("estimate", found.method, blocks, answers).text(sys.stdout)
