"""What a benchmark and a tune would do, all of it estimated, and how far a benchmark is."""

from __future__ import annotations

import math
import sys

from specserve.errors import UsageError
from specserve.measure.bench.blocks import prompts_by_block
from specserve.measure.bench.plan import BenchPlan
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Progress
from specserve.measure.tune.estimate import WITHOUT_MODEL, TuneEstimate
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launchplan import as_json
from specserve.report.bench import variant_words
from specserve.report.console import LiveLine, in_one_line, say, wrapped
from specserve.report.page import Block, Document, Items, Paragraph, Section, render
from specserve.report.text import (
    DASH,
    Column,
    Table,
    decimals,
    duration,
    json_document,
    with_spread,
)

_TOKENS = 256
"""Of an answer, if nothing limits it."""


def bench_plan(plan: BenchPlan, *, form: str) -> str:
    """Return what a benchmark would do, in at least how long. Raises UsageError for a page."""
    if form == "html":
        raise UsageError("`--dry-run` cannot print html", hint="use text, markdown or json")

    def requests(point: Point) -> int:
        """To one variant, in one round."""
        count = plan.prompts[point.workload]
        prompts = [Prompt(f"p{number}", 1, text="") for number in range(count)]
        return sum(map(len, prompts_by_block(prompts, point, count=plan.blocks)))

    speed = ASSUMED_SPEEDS[plan.platform or "cuda"]
    started = {variant.name for variant in plan.variants if variant.plan is not None}
    launches = sum(name in started for each in plan.sessions for name in each.variants)
    measured = sum(len(each.variants) for each in plan.sessions)
    round_s = measured * sum(
        speed.seconds(requests(point) * (plan.max_tokens or _TOKENS), point.concurrency)
        for point in plan.points
    )
    seconds = launches * speed.start_s + min(round_s, plan.budget_s)
    if form == "json":
        variants = [
            {
                "name": variant.name,
                "url": variant.url,
                "launch": as_json(variant.plan) if variant.plan is not None else None,
            }
            for variant in plan.variants
        ]
        found = {
            "name": plan.name,
            "variants": variants,
            "sessions": plan.sessions,
            "points": plan.points,
        }
        return json_document({**found, "launches": launches, "estimated_s": seconds})
    servers = [
        (str(number), f"{', '.join(each.variants)}{' at the same time' * (len(each.variants) > 1)}")
        for number, each in enumerate(plan.sessions, 1)
    ]
    points = [
        ("", f"{point}: {requests(point)} requests to each variant in a launch")
        for point in plan.points
    ]
    start = f"{speed.start_s:g} s a launch, " if launches else ""
    assumed = f"assumed, not measured: {start}{speed.tokens_per_s:g} tokens/s a request"
    more = f"{plan.budget_s / 60:.3g} min of measuring (`--budget`), which leaves out the launches"
    blocks: list[Block] = [
        Paragraph("This is a dry run: nothing is started."),
        Section(
            "variants",
            [
                Items(
                    [
                        (variant.name, variant.url or variant_words(variant.info))
                        for variant in plan.variants
                    ]
                )
            ],
        ),
        Section(f"launches: {launches} ({plan.placement.why})", [Items(servers)]),
        Section(f"points, {plan.blocks} blocks each, on every variant in turn", [Items(points)]),
        Paragraph(
            f"about {math.ceil(seconds / 60)} min ({assumed}); where that decides nothing, more "
            f"blocks, up to {more}"
        ),
    ]
    return render(Document("benchmark", plan.name, blocks), form=form, stream=sys.stdout)


def estimate_text(found: TuneEstimate) -> str:
    """Returns the estimate for a person: the answer at the lowest load, then every load."""
    first = found.points[0]
    answer = f"K = {first.num_speculative_tokens}, {with_spread(first.speedup, unit='x')}"
    if not first.num_speculative_tokens:
        answer = "no K is faster than no speculation"
    rows = [
        (
            str(point.concurrency),
            str(point.num_speculative_tokens),
            with_spread(point.speedup, unit="x") if point.num_speculative_tokens else DASH,
            decimals(point.break_even_mean_acceptance_length),
        )
        for point in found.points
    ]
    names = ("requests", "K", "speedup", "break-even length")
    texts = (
        f"Estimated, not measured: {answer} at concurrency {first.concurrency} ({found.method} on "
        f"{found.count}x {found.accelerator}, acceptance {found.acceptance:.2f} at every position, "
        f"{found.context_tokens:,} tokens of context)",
        "The range covers what engines and cards reach; it is no confidence interval. Prefill is "
        "left out. "
        f"The KV cache may hold {found.most_requests:,} such requests. "
        + (
            "An upper limit: every step is taken to find a match."
            if found.method in WITHOUT_MODEL
            else ""
        ),
    )
    head, legend = (wrapped(text, lead="", stream=sys.stdout) for text in texts)
    return "\n".join(
        [head, "", *Table([Column(name) for name in names], rows, keys=2).text(), "", legend]
    )


class BenchView(LiveLine):
    """Shows what happens; a context manager that leaves no half line behind."""

    def __init__(self) -> None:
        super().__init__(every_s=15.0)

    def __call__(self, what: Progress) -> None:
        """Show what is being done, or keep a note."""
        if what.is_note:
            self.erase()
            say(in_one_line(what.text))
        elif not what.total:
            self.show(what.text)
        else:
            is_last = what.done == what.total
            left = "the time is up" if what.left_s < 1 else f"about {duration(what.left_s)} left"
            left = "done" if is_last else left
            self.show(f"{what.done}/{what.total}, {left}; {what.text}", is_last=is_last)
