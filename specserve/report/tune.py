"""What a tune found, as text, a page and JSON; what one would launch; and what an estimate says instead."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from specserve.measure.tune.choose import Choice, Confirmed, ranges
from specserve.measure.tune.earlier import EarlierRun
from specserve.measure.tune.plan import TUNED, TunePlan
from specserve.measure.tune.predict import Row, place_of
from specserve.measure.tune.result import TuneResult
from specserve.report.charts import Chart, Series, Value, clean_value, other_colour
from specserve.report.console import escaped
from specserve.report.page import (
    Block,
    Card,
    Cards,
    Charts,
    Details,
    Document,
    Items,
    Paragraph,
    Section,
    Verbatim,
)
from specserve.report.text import (
    DASH,
    Column,
    Table,
    count,
    decimals,
    duration,
    json_document,
    json_values,
    moment,
    with_spread,
)

_MISS = 0.10
"""The share by which a prediction may be off before the report warns."""
_SETTINGS = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "draft_sample_method")
_UNITS = {
    "throughput": ("output tokens/s",), "tpot": ("ms per token",), "goodput": ("output tokens/s", "ms per token"),
}  # fmt: skip
"""What the tables show; `report.html` and `result.json` have everything."""
_LEGEND = (
    ("m", "measured"),
    ("p", "predicted from the launches without and with speculation"),
    ("p/m", "predicted and measured: this K ran at this concurrency"),
    ("*", "chosen"),
)
_WITHIN = ("(…%)", "requests within the latency limits of the profile")


def result_json(found: TuneResult) -> str:
    """Returns the result for scripts and for the run directory; every figure says if it was measured or predicted."""
    confirmed = [{**json_values(each), "miss": round(each.miss, 4)} for each in found.confirmed]
    baseline = [
        {
            "point": place_of(row.point),
            "concurrency": row.concurrency,
            "output_tokens_per_s": row.measured.output_tokens_per_s,
            "basis": "measured",
        }
        for row in found.plain_points
    ]
    content = {"kind": "tune", **json_values(found), "confirmed": confirmed, "baseline": baseline}
    # the choice is what `--write` writes, and stays exact
    return json_document({**json_values(content, digits=6), "choice": json_values(found.choice)}) + "\n"


def tune_document(found: TuneResult) -> Document:
    """Returns the whole report: the choice and its confirmation first, then every K at every load."""
    machine = found.host.get("accelerator", found.platform)
    launches = "1 launch" if found.launches == 1 else f"{found.launches} launches"
    lead = (
        f"{machine}, vLLM {found.versions.get('vllm', 'of unknown version')}, model runner {found.runner.upper()}, "
        f"{moment(found.created)}, {duration(found.duration_s)}, {launches}"
    )
    blocks: list[Block] = [Paragraph(lead, is_muted=True), *_choice(found), *_confirmed(found)]
    is_limited = any(row.predicted.within_limits is not None for row in found.points)
    blocks.append(Section("In the tables", [Items([*_LEGEND, *([_WITHIN] if is_limited else [])])]))
    for place in dict.fromkeys((row.candidate, row.workload, row.temperature) for row in found.points):
        blocks.append(_place(found, *place))
    if found.causes_of is not None:
        at = found.causes_of
        where = f"{at.workload}, concurrency {at.concurrency}, K = {at.num_speculative_tokens}"
        lines = []
        for each in found.causes:
            share = "also" if each.share is None else f"{each.share:.0%}"
            if share != "0%":
                lines.append((share, f"{each.name}: {each.told}; what changes it: {each.moves}"))
        blocks.append(
            Section(
                f"Why the speedup is {at.predicted.speedup.value:.2f}x and not {at.num_speculative_tokens + 1}x "
                f"(K + 1 tokens a step): each cause's share of the difference ({where})",
                [Items(lines)],
            )
        )
    left_out = [
        ("not measured", f"{each.name}: {each.left_out}") for each in found.candidates if each.left_out
    ]
    blocks.append(Items([*left_out, *(("note", note) for note in found.notes)]))
    most = max((each.measured_with or 0 for each in found.candidates if each.left_out is None), default=0)
    blocks.append(Paragraph(f"Nothing is known about K above {most}."))
    return Document("tune", found.name, blocks)


def _choice(found: TuneResult) -> Iterator[Block]:
    choice = found.choice
    if not choice.speculates:
        yield Cards([Card("Choice", "Run without speculation", [choice.reason])])
        yield from _caveat(choice)
        return
    speculation = choice.speculation or {}
    yield Cards(
        [Card("Choice", str(choice.candidate), [f"by {found.objective}", f"predicted {choice.reason}"])]
    )
    yield Verbatim(
        "\n".join(f"{key}: {json.dumps(speculation[key])}" for key in _SETTINGS if key in speculation)
    )
    yield from _caveat(choice)
    by_load = sorted(choice.num_speculative_tokens_by_concurrency.items())
    yield Items([line for load, tokens in by_load for line in _chosen(found, load, tokens)])


def _caveat(choice: Choice) -> Iterator[Block]:
    if choice.caveat:
        yield Paragraph(f"Not sure: {choice.caveat}. Run it again with a longer `--budget`.")


def _chosen(found: TuneResult, load: int, tokens: int) -> Iterator[tuple[str, str]]:
    """What the choice gives at one load."""
    if not tokens:
        mine = next(each for each in found.candidates if each.name == found.choice.candidate)
        cost = mine.zero_cost or 1.0
        yield f"concurrency {load}", f"K = 0: {cost:.2f}x of a server without speculation (its step measured)"
    for row in found.points:
        if found.is_chosen(row) and row.concurrency == load:
            gain = f"predicted speedup {with_spread(row.predicted.speedup, unit='x')}"
            if row.predicted.speedup.low < 1:
                gain += ", so it may not pay"
            if found.objective == "tpot":
                gain = f"{row.predicted.tpot_ms:.1f} ms per token predicted, {row.predicted.plain_tpot_ms:.1f} without"
            least = row.break_even_mean_acceptance_length
            even = f"break-even at {max(1.0, least):.2f}" if math.isfinite(least) else "never pays"
            length = f"{row.mean_acceptance_length.value:.2f} tokens per step ({even})"
            yield f"concurrency {load}", f"{found.place(row)}: K = {tokens}, {gain}; {length}"


def _confirmed(found: TuneResult) -> Iterator[Block]:
    if not found.confirmed:
        return
    how = "turn by turn with" if found.confirmed_turn_by_turn else "after"
    caption = f"Confirmed on other prompts, {how} the server without speculation (measured, 95 % interval)"
    names = ("concurrency", "speedup", "verdict", "predicted", "missed by", "within limits", "without")
    head = [
        Column("workload", "name"),
        *(Column(name, "verdict" if name == "verdict" else "number") for name in names),
    ]
    rows = [_confirmation(each, found) for each in found.confirmed]
    blocks: list[Block] = [Table(head, rows)]
    missed = sum(abs(each.miss) > _MISS for each in found.confirmed)
    if missed:
        words = f"the model missed {missed} of {len(rows)} points by more than {_MISS:.0%}: trust what was measured"
        blocks.append(Items([("warning", words)]))
    yield Section(caption, blocks)


def _confirmation(each: Confirmed, found: TuneResult) -> tuple[str, ...]:
    item = each.comparison
    return (
        found.place(item.point),
        str(item.point.concurrency),
        with_spread(item.speedup, unit="x") if item.speedup else "not measured",
        item.verdict.word,
        f"{each.predicted_speedup:.2f}x",
        f"{each.miss:+.0%}" if item.speedup else DASH,
        _share(each.within_limits),
        _share(each.plain_within_limits),
    )


def _share(value: float | None) -> str:
    return DASH if value is None else f"{value:.0%}"


def _place(found: TuneResult, candidate: str, workload: str, temperature: float) -> Section:
    """One candidate on one workload and temperature: throughput and latency by K and load, and its charts."""
    there = [
        row
        for row in (*found.plain_points, *found.points)
        if (row.workload, row.temperature) == (workload, temperature) and row.candidate in ("", candidate)
    ]
    rows = [row for row in there if row.num_speculative_tokens]
    loads = sorted({row.concurrency for row in rows})
    positions = found.per_position_acceptance.get(f"{candidate}/{workload}/{temperature:g}", ())
    return Section(
        f"{candidate}: {workload}, temperature {temperature:g}",
        [
            Charts(list(_pictures(rows, loads, positions))),
            *(_grid(found, there, loads, unit) for unit in _UNITS[found.objective]),
            Details("Every K at every load", [_details(found, there)]),
        ],
    )


def _grid(found: TuneResult, rows: Sequence[Row], loads: Sequence[int], unit: str) -> Table:
    """One figure by K and load."""
    by_place = {(row.num_speculative_tokens, row.concurrency): row for row in rows}
    head = (Column("K"), Column("tokens per step"), *(Column(str(load)) for load in loads))
    shown = []
    for tokens in range(max(row.num_speculative_tokens for row in rows) + 1):
        here = [by_place.get((tokens, load)) for load in loads]
        length = next((f"{row.mean_acceptance_length.value:.2f}" for row in here if row), DASH)
        shown.append((str(tokens), length, *(_cell(row, found, unit) for row in here)))
    return Table(head, shown, f"{unit} by concurrency", keys=1)


def _cell(row: Row | None, found: TuneResult, unit: str) -> str:
    """The figure, whether it was measured, and a star if it was chosen."""
    if row is None:
        return DASH
    star, within = "*" if found.is_chosen(row) else "", ""
    value, measured = row.predicted.output_tokens_per_s, row.measured.output_tokens_per_s
    if unit == "ms per token":
        value, measured = row.predicted.tpot_ms, row.measured.tpot_ms
        within = f" ({row.predicted.within_limits:.0%})" if row.predicted.within_limits is not None else ""
    if row.num_speculative_tokens and measured is not None:
        return f"{star}{value:.0f}p/{measured:.1f}m{within}"
    return f"{star}{value:.1f}{'p' if row.num_speculative_tokens else 'm'}{within}"


def _details(found: TuneResult, rows: Sequence[Row]) -> Table:
    head = ("concurrency", "K", "chosen", "tokens per step", "break-even", "step, ms", "predicted speedup",
            "predicted tokens/s", "measured tokens/s", "predicted ms per token", "measured ms per token",
            "within limits")  # fmt: skip
    shown = [
        (
            str(row.concurrency), str(row.num_speculative_tokens), "yes" if found.is_chosen(row) else "",
            decimals(row.mean_acceptance_length.value), decimals(row.break_even_mean_acceptance_length),
            decimals(row.step_ms), with_spread(row.predicted.speedup, unit="x"),
            decimals(row.predicted.output_tokens_per_s), decimals(row.measured.output_tokens_per_s),
            decimals(row.predicted.tpot_ms), decimals(row.measured.tpot_ms), _share(row.predicted.within_limits),
        )
        for row in sorted(rows, key=lambda each: (each.concurrency, each.num_speculative_tokens))
    ]  # fmt: skip
    return Table([Column(name) for name in head], shown, keys=2)


def _pictures(rows: Sequence[Row], loads: Sequence[int], positions: Sequence[float]) -> Iterator[Chart]:
    """Speedup by K, acceptance by position, and predicted beside measured rates, if they are known."""
    by_place = {(row.concurrency, row.num_speculative_tokens): row.predicted.speedup for row in rows}
    tokens = sorted({row.num_speculative_tokens for row in rows})

    def value(load: int, k: int) -> Value | None:
        known = by_place.get((load, k))
        return clean_value(known.value, known.low, known.high) if known else None

    lines = [
        Series(f"concurrency {at}", other_colour(index), tuple(value(at, k) for k in tokens))
        for index, at in enumerate(loads)
    ]
    caption = "predicted, over no speculation"
    yield Chart("lines", "Speedup by K", caption, "K", list(map(str, tokens)), lines, 1.0)
    if positions:
        groups = [str(at) for at in range(1, len(positions) + 1)]
        bars = [Series("accepted", 1, tuple(map(clean_value, positions)))]
        yield Chart("bars", "Acceptance by position", "measured, share of steps", "position", groups, bars)
    both = [(row, row.measured.output_tokens_per_s) for row in rows if row.measured.output_tokens_per_s]
    if both:
        groups = [f"{row.num_speculative_tokens}, {row.concurrency}" for row, _ in both]
        bars = [
            Series("predicted", 1, tuple(clean_value(row.predicted.output_tokens_per_s) for row, _ in both)),
            Series("measured", 0, tuple(clean_value(measured) for _, measured in both)),
        ]
        unit = "output tokens/s: left predicted, right measured"
        yield Chart("bars", "Predicted and measured", unit, "K, concurrency", groups, bars)


def plan_content(plan: TunePlan, found: EarlierRun | None = None) -> dict[str, Any]:
    """Returns what would be launched and sent, as JSON has it. `found`: the run of the same command."""
    budget, left_out = plan.budget, [(each.name, each.left_out) for each in plan.left_out]
    left_out += [("the confirmation" if name == TUNED else name, why) for name, why in budget.left_out]
    run = None
    if found is not None:
        is_complete = found.answers(plan.request)
        run = {"path": str(found.path), "begun": found.begun, "is_complete": is_complete}
    return {
        "kind": "tune-plan",
        "launches": list(_launches(plan)),
        "seconds_guessed": round(budget.seconds),
        "share_of_prompts": budget.share,
        "fits": budget.exceeded is None,
        "exceeded": budget.exceeded,
        "platform": plan.platform,
        "other_hardware": plan.other_hardware,
        "workloads": plan.workloads,
        "temperatures": plan.temperatures,
        "concurrency": plan.loads,
        "concurrency_between": plan.extra_loads(plan.baseline),
        "confirms": plan.confirms,
        "objective": plan.objective,
        "left_out": [{"name": name, "reason": reason} for name, reason in left_out],
        "run": run,
    }


def _launches(plan: TunePlan) -> Iterator[dict[str, Any]]:
    """Name, command and purpose of each."""
    candidates = {launch.name: each for each in plan.candidates for launch in each.launches}
    for launch in plan.launches:
        if launch.name not in plan.budget.kept or launch.arm.plan is None:
            continue
        if launch is plan.baseline:
            between = ", ".join(map(str, plan.extra_loads(launch)))
            why = "the same server without speculation"
            why += f"; its steps are also timed at concurrency {between}" if between else ""
        elif launch.tokens_by_load:
            why = f"K by batch size in one launch: {json.dumps(ranges(launch.tokens_by_load))}"
        else:
            why = f"K = {launch.most_tokens} at every load ({candidates[launch.name].ladder_obstacle})"
        yield {"name": launch.name, "argv": launch.arm.plan.argv, "why": why}
    if plan.confirms:
        beside = "turn by turn with the baseline" if plan.room.at_once >= 2 else "after the others"
        yield {"name": TUNED, "argv": [], "why": f"what is chosen, on other prompts, {beside}"}


def plan_text(plan: TunePlan, found: EarlierRun | None = None) -> str:
    """Returns the same for a person."""
    content = plan_content(plan, found)
    seconds = duration(content["seconds_guessed"])
    lines = [f"Would launch {count(len(content['launches']), 'server')}, about {seconds} (a guess):"]
    for each in content["launches"]:
        lines.append(f"  {escaped(each['name']):<24} {each['why']}")
        lines += [f"    {escaped(shlex.join(each['argv']))}"] if each["argv"] else []
    lines.append(
        f"Sends {', '.join(plan.workloads)} at temperature {', '.join(f'{t:g}' for t in plan.temperatures)}, "
        f"concurrency {', '.join(map(str, plan.loads))}: {plan.prompts} prompts each to choose by"
        + (", the others to confirm" if plan.confirms else "")
    )
    if plan.other_hardware is not None:
        lines.append(
            f"Planned for this machine ({plan.platform}); the profile names {escaped(plan.other_hardware)}: "
            "measure there, or use `--estimate`"
        )
    lines += [
        f"Not measured: {escaped(each['name'])}: {escaped(each['reason'])}" for each in content["left_out"]
    ]
    if plan.budget.exceeded:
        lines.append(f"That is more than {plan.budget.exceeded}.")
    if found is not None and found.answers(plan.request):
        same = "the same command shows that run, and launches nothing"
        lines.append(f"Measured on {found.begun} already: {same}: {escaped(str(found.path))}")
    elif found is not None:
        same = "the same command resumes that run, and measures what is missing"
        lines.append(f"Begun on {found.begun}: {same}: {escaped(str(found.path))}")
    return "\n".join(lines)
