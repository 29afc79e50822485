"""What a benchmark would do, what a tune may bring, both estimated; and how far a benchmark is."""

from __future__ import annotations

import math
import sys

from specserve.measure.bench.blocks import prompts_by_block
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Progress
from specserve.measure.tune.estimate import WITHOUT_MODEL, TuneEstimate
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launchplan import as_json
from specserve.report.bench import variant_words
from specserve.report.console import LiveLine, in_one_line, say
from specserve.report.page import Block, Document, Items, Paragraph, Section, render
from specserve.report.text import (
    DASH,
    Column,
    Table,
    duration,
    json_document,
    with_spread,
)

_TOKENS = 256
"""Of an answer, if nothing limits it."""


def bench_plan(plan: BenchPlan, *, form: str) -> str:
    """Return what a benchmark would do, and in at least how long."""

    def requests(point: Point) -> int:
        """To one variant, in one round."""
        number = plan.prompts[point.workload]
        prompts = [Prompt(f"p{at}", 1, text="") for at in range(number)]
        return sum(map(len, prompts_by_block(prompts, point, count=plan.blocks)))

    speed = ASSUMED_SPEEDS[plan.platform or "cuda"]
    measured = [name for session in plan.sessions for name in session.variants]
    started = [each.name for each in plan.variants if each.plan is not None]
    launches = sum(name in started for name in measured)
    round_s = len(measured) * sum(
        speed.seconds(requests(point) * (plan.max_tokens or _TOKENS), point.concurrency)
        for point in plan.points
    )
    seconds = launches * speed.start_s + min(round_s, plan.budget_s)
    if form == "json":
        variants = [
            {"name": each.name, "url": each.url, "launch": each.plan and as_json(each.plan)}
            for each in plan.variants
        ]
        found = {"variants": variants, "points": plan.points}
        return json_document({**found, "launches": launches, "estimated_s": seconds})
    answer = (
        f"This is a dry run: nothing is started. It would take about {math.ceil(seconds / 60)} min "
        f"(assumed, not measured: {speed.start_s:g} s a launch, {speed.tokens_per_s:g} tokens/s a "
        f"request); where that decides nothing, up to {duration(plan.budget_s)} of measuring "
        "(`--budget`), without the launches."
    )
    variants_shown = [(each.name, each.url or variant_words(each.info)) for each in plan.variants]
    together = [("", ", ".join(each.variants)) for each in plan.sessions]
    points = [("", f"{each}: {requests(each)} requests in a launch") for each in plan.points]
    blocks = [
        Section("variants", [Items(variants_shown)]),
        Section(f"launches: {launches}", [Items(together)]),
        Section(f"points, {plan.blocks} blocks each, on every variant in turn", [Items(points)]),
    ]
    document = Document("benchmark", plan.name, blocks, [("", answer)])
    return render(document, form=form, stream=sys.stdout)


def estimate_text(found: TuneEstimate) -> str:
    """Return the estimate for a person: the answer at the lowest load, then every load."""
    first = found.points[0]
    answer = f"K = {first.num_speculative_tokens}, {with_spread(first.speedup, unit='x')}"
    if not first.num_speculative_tokens:
        answer = "no K is faster than no speculation"
    answer += (
        f" at concurrency {first.concurrency} ({found.method} on {found.count}x "
        f"{found.accelerator}, acceptance {found.acceptance:.2f} at every position, "
        f"{found.context_tokens:,} tokens of context)"
    )
    rows = [
        (
            str(point.concurrency),
            str(point.num_speculative_tokens),
            with_spread(point.speedup, unit="x") if point.num_speculative_tokens else DASH,
        )
        for point in found.points
    ]
    names = ("requests", "K", "speedup")
    legend = (
        "The range covers what engines and cards reach; it is no confidence interval. Prefill is "
        f"left out. At most {found.most_requests:,} such requests run at once."
    )
    if found.method in WITHOUT_MODEL:
        legend += " An upper limit: every step is taken to find a match."
    blocks: list[Block] = [Table([Column(name) for name in names], rows, keys=2), Paragraph(legend)]
    answers = [("Estimated, not measured", answer)]
    return Document("estimate", found.method, blocks, answers).text(sys.stdout)


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
        else:
            is_last = what.done == what.total
            left = "the time is up" if what.left_s < 1 else f"about {duration(what.left_s)} left"
            left = "done" if is_last else left
            self.show(f"{what.done}/{what.total}, {left}; {what.text}", is_last=is_last)
