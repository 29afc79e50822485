"""What a benchmark and a tune would do, all of it estimated, and how far a benchmark is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from specserve.errors import UsageError
from specserve.measure.bench import rundir
from specserve.measure.bench.plan import BenchPlan, deal
from specserve.measure.bench.result import Point
from specserve.measure.tune.estimate import LONGEST, Estimate, EstimatedPoint
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launchplan import as_json
from specserve.report.bench import arm_words, where
from specserve.report.console import LiveLine, in_one_line, out, say
from specserve.report.page import Block, Document, Items, Paragraph, Section, Verbatim, render
from specserve.report.text import (
    Column,
    Table,
    count,
    duration,
    json_document,
    json_values,
    low_to_high,
    number,
    with_spread,
)

_SPEEDS = {"cpu": (30.0, 40.0, 2), "cuda": (180.0, 60.0, 64)}
"""Assumed, to say minutes before anything ran: seconds of a launch, tokens/s of one request, requests that add up."""
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
    launch_s, speed, most = _SPEEDS[plan.platform or "cuda"]
    launched = {arm.name for arm in plan.arms if arm.plan is not None}
    launches = sum(name in launched for session in plan.sessions for name in session.arms)
    runs = sum(len(session.arms) for session in plan.sessions)
    requests, measuring_s = 0, 0.0
    for point in plan.points:
        sent = _requests_to_variant(plan, point)
        seconds = sent * (plan.max_tokens or _TOKENS) / (speed * min(point.concurrency or most, most))
        if point.request_rate:
            seconds = max(seconds, sent / point.request_rate)
        requests, measuring_s = requests + sent * runs, measuring_s + seconds * runs
    if plan.budget_s is not None:
        measuring_s = min(measuring_s, plan.budget_s)
    return BenchEstimate(launches, launches * launch_s, measuring_s, requests)


def _requests_to_variant(plan: BenchPlan, point: Point) -> int:
    """Returns the requests to one variant in one launch."""
    prompts = [Prompt(f"p{number}", 1, text="") for number in range(plan.prompts[point.workload])]
    return sum(map(len, deal(prompts, point, count=plan.blocks, launch=0)))


def _bench_document(plan: BenchPlan, obstacle: str | None) -> Document:
    guess, (launch_s, speed, _) = _bench_estimate(plan), _SPEEDS[plan.platform or "cuda"]
    servers = [
        (str(number), f"{', '.join(each.arms)}{' at the same time' if len(each.arms) > 1 else ''}")
        for number, each in enumerate(plan.sessions, 1)
    ]
    points = [
        ("", f"{where(point)}: {_requests_to_variant(plan, point)} requests to each variant in a launch")
        for point in plan.points
    ]
    minutes = math.ceil((guess.launching_s + guess.measuring_s) / 60)
    launches = f"{launch_s:g} s a launch, " if guess.launches else ""
    assumed = f"assumed, not measured: {launches}{speed:g} tokens/s a request"
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


_VERDICTS = {"fit": "fits", "tight": "tight", "does_not_fit": "does not fit"}
_MARKS = {True: " ", None: "?", False: "*"}
_LEGENDS = {
    "*": "more requests than the KV cache holds: some would wait, and these figures are not reached",
    "?": "perhaps more requests than the KV cache holds",
}
_LENGTHS = (
    "needed and assumed: tokens per step, its own token included; needed: from which mean acceptance length "
    "speculation pays (break-even)"
)


def estimate_json(found: Estimate) -> str:
    """Returns the estimate for scripts; `basis` is `estimated` throughout."""
    return json_document(json_values(found, digits=6))


def estimate_document(found: Estimate, *, file: str) -> Document:
    """Returns the estimate for a person. `file`: the profile as it was named."""
    assumed, count = found.assumed, found.count * found.nodes
    chance = f"{assumed.acceptance:g} of each draft token, given the one before"
    if assumed.mean_acceptance_length is not None:
        chance = (
            f"{assumed.acceptance:.2f} of each draft token, from {assumed.mean_acceptance_length:.2f} tokens a step "
            f"at K = {assumed.mean_acceptance_length_at}"
        )
    marks = {_MARKS[point.fits_kv_cache] for point in found.points}
    most = f"{found.memory_bound_up_to_tokens:,.0f} tokens"
    ridge = f"a step stays bound by memory up to about {most}, draft tokens included"
    return Document(
        "estimate",
        found.profile,
        [
            Paragraph(
                f"Estimated, nothing was measured: {found.method} on {count}x {found.accelerator}, chance {chance}, "
                f"{assumed.context_tokens:,.0f} tokens of context a request"
            ),
            Paragraph(f"Memory: {_memory_line(found, file)}"),
            _table(found.points),
            Items([*((mark, text) for mark, text in _LEGENDS.items() if mark in marks), ("", _LENGTHS)]),
            *_recommended(found),
            Section("Basis", [Items([("-", line) for line in (*found.rests_on, ridge)])]),
        ],
    )


def _memory_line(found: Estimate, file: str) -> str:
    """The verdict, and how many requests run at once."""
    memory = found.memory
    words = [_VERDICTS[memory.verdict] + (f": {memory.reason}" if memory.reason else "")]
    if memory.verdict == "does_not_fit":
        words.append("no request could be served")
    elif memory.requests_at_once is not None:
        low, high = (f"{value:,.0f}" for value in (memory.requests_at_once.low, memory.requests_at_once.high))
        words.append(f"{low_to_high(low, high, between=' to ')} such requests fit in parallel")
    if memory.verdict != "fit":
        nodes = f"{found.nodes}x" if found.nodes > 1 else ""
        machine = f"{nodes}{found.count}x{found.accelerator}"
        words.append(f"`specserve check {file} --assume {machine}` shows what to change")
    return "; ".join(words)


def _table(points: tuple[EstimatedPoint, ...]) -> Table:
    names = ("requests", "K", "speedup", "tokens/s", "TPOT, ms", "step, ms", "needed", "assumed")
    rows = [
        (
            f"{point.concurrency}{_MARKS[point.fits_kv_cache]}",
            str(point.num_speculative_tokens),
            with_spread(point.speedup, unit="x")
            if point.num_speculative_tokens
            else f"K = 1: {point.speedup.value:.2f}x",
            f"{point.output_tokens_per_s:,.0f}",
            number(point.tpot_ms, 1),
            number(point.step_ms, 1),
            number(point.break_even_mean_acceptance_length),
            number(point.assumed_mean_acceptance_length),
        )
        for point in points
    ]
    return Table([Column(name) for name in names], rows, keys=2)


def _recommended(found: Estimate) -> Iterator[Block]:
    """What to write into the profile, why it is one K, and what it gives."""
    loads, most = found.served, found.largest_num_speculative_tokens
    words = []
    if not found.num_speculative_tokens:
        words.append(
            "Speculation gains nothing at any of these loads: a step with drafts costs more than it brings."
        )
    else:
        keys = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
        setting = {key: value for key in keys if (value := getattr(found, key)) is not None}
        yield Verbatim("\n".join(f"{key}: {json.dumps(value)}" for key, value in setting.items()))
        if len(setting) == 1 and len({load.num_speculative_tokens for load in loads}) > 1:
            why = found.no_schedule_because or "a schedule by load would gain next to nothing"
            words.append(f"One K for all loads: {why}.")
        gains = [
            f"{load.recommended.speedup.value:.2f}x at {load.concurrency}"
            for load in loads
            if load.recommended
        ]
        words.append(f"With that, by concurrency: {', '.join(gains)}.")
        if found.recommended_mean_speedup is not None and found.recommended_mean_speedup < 1:
            mean = f"Over these loads that is {found.recommended_mean_speedup:.2f}x in the mean"
            words.append(f"{mean}: better without speculation, unless the load stays low enough.")
        none = [load.concurrency for load in loads if not load.num_speculative_tokens]
        if none and none == [load.concurrency for load in loads][-len(none) :]:
            words.append(f"From concurrency {none[0]} on, no K gains anything by this estimate.")
        elif none:
            *others, last = map(str, none)
            listed = f"{', '.join(others)} and {last}" if others else last
            words.append(f"At concurrency {listed} no K gains anything by this estimate.")
    if any(load.num_speculative_tokens == most for load in loads) and most < LONGEST:
        more = f"`--k-max {min(LONGEST, 2 * most)}` tries more"
        words.append(f"K = {most} is the largest K that was tried: {more}.")
    yield Paragraph(" ".join(words))


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
