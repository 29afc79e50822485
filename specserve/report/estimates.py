"""What a benchmark and a tune would do, all of it estimated, and how far a benchmark is."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from specserve.errors import UsageError
from specserve.measure.bench import rundir
from specserve.measure.bench.plan import BenchPlan, deal
from specserve.measure.bench.result import Point
from specserve.measure.tune.estimate import WITHOUT_MODEL, TuneEstimate
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launchplan import as_json
from specserve.report.bench import arm_words, where
from specserve.report.console import LiveLine, in_one_line, out, say, wrapped
from specserve.report.page import Block, Document, Items, Paragraph, Section, render
from specserve.report.text import (
    DASH,
    Column,
    Table,
    count,
    decimals,
    duration,
    json_document,
    with_spread,
)

_TOKENS = 256


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    """Seconds, all assumed: no server was asked. `requests`: of every variant together."""

    launches: int
    launching_s: float
    measuring_s: float
    requests: int


def show_bench_plan(plan: BenchPlan, *, format: str, obstacle: str | None = None) -> None:
    """Print it. `obstacle`: why it would not start here. Raises UsageError for a format that a plan does not have."""
    if format == "json":
        launches = [as_json(arm.plan) if arm.plan is not None else None for arm in plan.arms]
        content = {
            "name": plan.name,
            "arms": [
                {"name": arm.name, "url": arm.url, "launch": launch}
                for arm, launch in zip(plan.arms, launches, strict=True)
            ],
            "sessions": [{"launch": each.launch, "arms": each.arms} for each in plan.sessions],
            "arms_at_once": plan.fit.at_once,
            "points": plan.points,
            "blocks": plan.blocks,
            "estimated": _bench_estimate(plan),
            "obstacle": obstacle,
        }
        out(json_document(content))
    elif format == "html":
        raise UsageError("`--dry-run` cannot print html", hint="use text, markdown or json")
    else:
        out(render(_bench_document(plan, obstacle), form=format, stream=sys.stdout))


def _bench_estimate(plan: BenchPlan) -> BenchEstimate:
    """Returns an estimate from the sizes alone."""
    speed = ASSUMED_SPEEDS[plan.platform or "cuda"]
    launched = {arm.name for arm in plan.arms if arm.plan is not None}
    launches = sum(name in launched for session in plan.sessions for name in session.arms)
    runs = sum(len(session.arms) for session in plan.sessions)
    requests, measuring_s = 0, 0.0
    for point in plan.points:
        sent = _requests_to_variant(plan, point)
        tokens = sent * (plan.max_tokens or _TOKENS)
        seconds = speed.seconds(tokens, point.concurrency or speed.together)
        if point.request_rate:
            seconds = max(seconds, sent / point.request_rate)
        requests, measuring_s = requests + sent * runs, measuring_s + seconds * runs
    if plan.budget_s is not None:
        measuring_s = min(measuring_s, plan.budget_s)
    return BenchEstimate(launches, launches * speed.start_s, measuring_s, requests)


def _requests_to_variant(plan: BenchPlan, point: Point) -> int:
    """Returns the requests to one variant in one launch."""
    prompts = [Prompt(f"p{number}", 1, text="") for number in range(plan.prompts[point.workload])]
    return sum(map(len, deal(prompts, point, count=plan.blocks, launch=0)))


def _bench_document(plan: BenchPlan, obstacle: str | None) -> Document:
    guess, speed = _bench_estimate(plan), ASSUMED_SPEEDS[plan.platform or "cuda"]
    servers = [
        (str(number), f"{', '.join(each.arms)}{' at the same time' if len(each.arms) > 1 else ''}")
        for number, each in enumerate(plan.sessions, 1)
    ]
    points = [
        ("", f"{where(point)}: {_requests_to_variant(plan, point)} requests to each variant in a launch")
        for point in plan.points
    ]
    minutes = math.ceil((guess.launching_s + guess.measuring_s) / 60)
    launches = f"{speed.start_s:g} s a launch, " if guess.launches else ""
    assumed = f"assumed, not measured: {launches}{speed.tokens_per_s:g} tokens/s a request"
    bound = (
        f"; `--budget` stops the measuring, which does not include the launches, after {plan.budget_s / 60:.3g} min"
        if plan.budget_s is not None
        else ""
    )
    blocks: list[Block] = [
        Paragraph("This is a dry run: nothing is started."),
        Section("variants", [Items([(arm.name, arm.url or arm_words(arm.info)) for arm in plan.arms])]),
        Section(f"launches: {guess.launches} ({plan.fit.why})", [Items(servers)]),
        Section(f"points, {count(plan.blocks, 'block')} each, on every variant in turn", [Items(points)]),
        Paragraph(f"about {minutes} min ({assumed}){bound}"),
    ]
    if obstacle is not None:
        blocks.append(Paragraph(f"on this machine it would not start: {obstacle}"))
    return Document("benchmark", plan.name, blocks)


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
            f"{point.output_tokens_per_s:,.0f}",
            decimals(point.break_even_mean_acceptance_length),
        )
        for point in found.points
    ]
    names = ("requests", "K", "speedup", "tokens/s", "break-even length")
    texts = (
        f"Estimated, not measured: {answer} at concurrency {first.concurrency} ({found.method} on {found.count}x "
        f"{found.accelerator}, acceptance {found.acceptance:.2f} at every position, {found.context_tokens:,} tokens "
        "of context)",
        "The range covers what engines and cards reach; it is no confidence interval. Prefill is left out. "
        f"The KV cache may hold {found.most_requests:,} such requests. "
        + ("An upper limit: every step is taken to find a match." if found.method in WITHOUT_MODEL else ""),
    )
    head, legend = (wrapped(text, lead="", stream=sys.stdout) for text in texts)
    return "\n".join([head, "", *Table([Column(name) for name in names], rows, keys=2).text(), "", legend])


class BenchView(LiveLine):
    """Shows what happens; a context manager that leaves no half line behind."""

    def __init__(self) -> None:
        super().__init__(every_s=15.0)

    def __call__(self, what: rundir.News) -> None:
        """Show one piece of news."""
        match what:
            case rundir.Doing():
                self.show(what.text)
            case rundir.Noted():
                self.erase()
                say(in_one_line(what.text))
            case rundir.Passed():
                is_last = what.done == what.total
                soon = "the time is up" if what.left_s < 1 else f"about {duration(what.left_s)} left"
                left = "done" if is_last else soon
                figures = f"{what.arm}, {where(what.point)}: {what.tokens_per_s:.1f} tokens/s"
                self.show(f"{what.done}/{what.total}, {left}; {figures}", is_last=is_last)
