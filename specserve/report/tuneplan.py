"""What a tune would launch and send, and what it is estimated to find."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from specserve.checks.rules.memory import capacity, gib
from specserve.measure.bench.result import Interval
from specserve.measure.tune.estimated import Estimate, Given
from specserve.measure.tune.plan import TUNED, duration, in_words
from specserve.measure.tune.roofline import LONGEST, Estimated
from specserve.measure.tune.schedule import as_ranges
from specserve.memory.constants import Bounds
from specserve.memory.estimate import MemoryEstimate
from specserve.report.console import clean, filled
from specserve.report.numbers import low_to_high, with_spread
from specserve.report.serializer import json_document, picked


def plan_text(ready: Any, found: Any = None) -> str:
    """For a person. `found`: the run of the same command, where there is one."""
    wish, fitted = ready.wish, ready.fitted
    lines = [f"Would launch {len(fitted.kept)} servers, about {duration(fitted.seconds)} (a guess):"]
    for name, argv, why in launches(ready):
        lines.append(f"  {clean(name):<24} {why}")
        if argv:
            lines.append(f"    {clean(shlex.join(argv))}")
    loads = ", ".join(map(str, wish.loads))
    lines.append(
        f"Sends {', '.join(wish.workloads)} at temperature {', '.join(f'{t:g}' for t in wish.temperatures)}, "
        f"concurrency {loads}: {wish.prompts} prompts each to choose by"
        + (", the others to confirm" if ready.confirms else "")
    )
    other = other_hardware(ready)
    if other is not None:
        lines.append(
            f"Planned for this machine ({wish.platform}); the profile names {clean(other)}: measure there, or "
            "use `--estimate`"
        )
    for name, _, reason in wish.left_out:
        lines.append(f"Not measured: {clean(name)}: {clean(reason)}")
    for name, reason in fitted.left_out:
        lines.append(f"Left out: {clean(in_words(name))}: {reason}")
    if not fitted.fits:
        lines.append(f"That is more than {fitted.exceeded}.")
    if found is not None:
        lines.append(_run_text(found, is_answered=found.answers(ready.asked)))
    return "\n".join(lines)


def _run_text(found: Any, *, is_answered: bool) -> str:
    path = clean(str(found.path))
    if is_answered:
        same = "the same command shows that run, and launches nothing"
        return f"Measured on {found.begun} already: {same}: {path}"
    return f"Begun on {found.begun}: the same command resumes that run, and measures what is missing: {path}"


def plan_json(ready: Any, found: Any = None) -> str:
    """Returns the same for scripts."""
    wish, fitted = ready.wish, ready.fitted
    left_out = [(name, reason) for name, _, reason in wish.left_out]
    left_out += [(in_words(name), reason) for name, reason in fitted.left_out]
    run = None
    if found is not None:
        run = {"path": str(found.path), "begun": found.begun, "is_complete": found.answers(ready.asked)}
    content = {
        "kind": "tune-plan",
        "launches": [{"name": name, "argv": list(argv), "why": why} for name, argv, why in launches(ready)],
        "seconds_guessed": round(fitted.seconds),
        "share_of_prompts": fitted.share,
        **picked(fitted, "fits", "exceeded"),
        "platform": wish.platform,
        "other_hardware": other_hardware(ready),
        **picked(wish, "workloads", "temperatures"),
        "concurrency": list(wish.loads),
        "concurrency_between": list(wish.extras(None)),
        "confirms": ready.confirms,
        "objective": wish.objective,
        "left_out": [{"name": name, "reason": reason} for name, reason in left_out],
        "run": run,
    }
    return json_document(content)


def other_hardware(ready: Any) -> str | None:
    """What the profile is meant for, where that is of another platform than what it is planned for here."""
    hardware = ready.profile.hardware
    if hardware is None or hardware.accelerator is None:
        return None
    if (hardware.accelerator == "cpu") == (ready.wish.platform == "cpu"):
        return None
    count = hardware.count * hardware.nodes
    return f"{count}x{hardware.accelerator}" if count > 1 else str(hardware.accelerator)


def launches(ready: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """Name, command and purpose of each."""
    wish = ready.wish
    why = "the same server without speculation"
    between = ", ".join(map(str, wish.extras(None)))
    if between:
        why += f"; its steps are also timed at concurrency {between}"
    found = [("baseline", wish.baseline.plan.argv, why)]
    for each in ready.kept:
        if each.rungs:
            why = f"K by batch size in one launch: {json.dumps(as_ranges(each.rungs))}"
        else:
            why = f"K = {each.most_tokens} at every load ({each.why_no_ladder})"
        found.append((each.name, each.arm.plan.argv, why))
    if TUNED in ready.fitted.kept and ready.confirms:
        beside = "turn by turn with the baseline" if ready.room.at_once >= 2 else "after the others"
        found.append((TUNED, (), f"what is chosen, on other prompts, {beside}"))
    return found


_HEAD = """\
requests  K  speedup             tokens/s       TPOT       step    tokens a step
                                                                 needed  assumed"""
_LENGTHS = (
    "tokens a step: the mean acceptance length, the step's own token included; needed: from which "
    "speculation pays (break-even)"
)
_MEMORY = {"fit": "fits", "tight": "tight", "does_not_fit": "DOES NOT FIT"}
_MARKS = {True: " ", None: "?", False: "*"}
_LEGENDS = {
    "*": "more requests than the KV cache holds: some would wait, and these figures are not reached",
    "?": "perhaps more requests than the KV cache holds",
}


def estimate_text(found: Estimate, *, name: str, file: str) -> str:
    """For a person, at 80 columns. `file`: the profile as it was named."""
    lines = [
        f"Estimated, nothing was measured: {clean(name)} ({found.method}) on {_where(found)},",
        f"chance {_chance(found)},",
        f"{found.context_tokens:,.0f} tokens of context a request",
        _filled(_memory(found, file), "Memory: "),
        "",
        _HEAD,
        *(_row(load, _MARKS[found.fits(load.concurrency)]) for load in found.loads),
        _filled(_LENGTHS),
    ]
    marks = {_MARKS[found.fits(load.concurrency)] for load in found.loads}
    lines += [_filled(text, f"{mark} ") for mark, text in _LEGENDS.items() if mark in marks]
    lines += ["", *_verdict(found), "", "Basis"]
    ridge = f"a step stays bound by memory up to about {found.free_tokens:,.0f} tokens, draft tokens included"
    lines += [_filled(line, "  - ") for line in (*found.basis, ridge)]
    return "\n".join(lines)


def _filled(text: str, lead: str = "") -> str:
    return filled(text, lead=lead, stream=sys.stdout)


def _where(found: Estimate) -> str:
    return f"{found.machine.count * found.machine.nodes}x {found.machine.accelerator.name}"


def _chance(found: Estimate) -> str:
    chance = found.chance
    if chance.length is None:
        return f"{chance.value:g} of each draft token, given the one before"
    return f"{chance.value:.2f} of each draft token, from {chance.length:.2f} tokens a step at K = {chance.tokens}"


def _memory(found: Estimate, file: str) -> str:
    """The verdict, and how many requests run at once."""
    reason = _reason(found.memory)
    text = _MEMORY[found.memory.verdict] + (f": {reason}" if reason else "")
    if found.memory.verdict != "does_not_fit" and found.requests_at_once is not None:
        text += f"; {_range(found.requests_at_once)} such requests fit in parallel"
    if found.memory.verdict == "fit":
        return text
    machine = found.machine
    nodes = f"{machine.nodes}x" if machine.nodes > 1 else ""
    assumed = f"{nodes}{machine.count}x{machine.accelerator.name}"
    turn = f"`specserve check {clean(file)} --assume {assumed}` shows what to change"
    return f"{text}; {'no request could be served; ' * (found.memory.verdict != 'tight')}{turn}"


def _reason(memory: MemoryEstimate) -> str:
    if memory.verdict != "does_not_fit":
        return memory.reason
    parts = memory.per_gpu_bytes
    weights = parts.target_weights + parts.draft_weights
    if weights >= parts.budget:
        return f"the weights take {gib(weights)} per GPU, and vLLM may use {gib(parts.budget)}"
    return capacity(memory)


def _range(bounds: Bounds) -> str:
    return low_to_high(f"{bounds.low:,.0f}", f"{bounds.high:,.0f}", between=" to ")


def _row(load: Estimated, mark: str) -> str:
    shown = with_spread(load.speedup, unit="x") if load.tokens else f"none: K = 1 {load.speedup.value:.2f}x"
    return (
        f"{load.concurrency:8d}{mark} {load.tokens:<2d} {shown:<17} {load.tokens_per_s:9,.0f} "
        f"{load.tpot_ms:7.1f} ms {load.step_ms:7.1f} ms {load.break_even:8.2f} {load.mean_length:8.2f}"
    )


def _verdict(found: Estimate) -> list[str]:
    loads, lines = found.served, []
    if found.schedule is None:
        none = (
            "Speculation gains nothing at any of these loads: a step with drafts costs more than it brings."
        )
        lines.append(_filled(none))
    else:
        lines += [*_setting(found, loads), *_without_gain(loads)]
    if any(load.tokens == found.most_tokens for load in loads) and found.most_tokens < LONGEST:
        further = min(LONGEST, 2 * found.most_tokens)
        most = f"K = {found.most_tokens} is the largest K that was tried"
        lines.append(f"{most}: `--k-max {further}` tries more.")
    return lines


def _setting(found: Estimate, loads: Sequence[Estimated]) -> list[str]:
    """What to write into the profile, why it is one K, and what it gives."""
    assert found.schedule is not None
    lines = [f"num_speculative_tokens: {found.schedule.largest}"]
    if not found.schedule.is_constant:
        ranges = json.dumps([list(each) for each in found.schedule.ranges])
        lines.append(f"num_speculative_tokens_per_batch_size: {ranges}")
    elif len({load.tokens for load in loads}) > 1:
        why = found.why_constant or "a schedule by load would gain next to nothing"
        lines.append(_filled(f"One K for all loads: {why}."))
    gains = [
        f"{given.speedup.value:.2f}x at {load.concurrency}"
        for load, given in zip(found.loads, found.recommended, strict=True)
        if load in loads
    ]
    lines.append(_filled(f"With that, by concurrency: {', '.join(gains)}."))
    if found.mean_gain is not None and found.mean_gain < 1:
        mean = f"Over these loads that is {found.mean_gain:.2f}x in the mean"
        lines.append(_filled(f"{mean}: better without speculation, unless the load stays low enough."))
    return lines


def _without_gain(loads: Sequence[Estimated]) -> list[str]:
    none = [load.concurrency for load in loads if not load.tokens]
    if not none:
        return []
    if none == [load.concurrency for load in loads][-len(none) :]:
        return [f"From concurrency {none[0]} on, no K gains anything by this estimate."]
    return [_filled(f"At concurrency {_listed(none)} no K gains anything by this estimate.")]


def _listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def estimate_json(found: Estimate, *, name: str) -> str:
    """Returns the estimate for scripts; `basis` is `estimated` throughout."""
    machine, schedule, chance = found.machine, found.schedule, found.chance
    recommended = found.recommended or (None,) * len(found.loads)
    content: dict[str, Any] = {
        "kind": "estimate",
        "basis": "estimated",
        "profile": name,
        "accelerator": machine.accelerator.name,
        **picked(machine, "count", "nodes"),
        "method": found.method,
        "assumed": {
            "acceptance": chance.value,
            "mean_acceptance_length": chance.length,
            "mean_acceptance_length_at": chance.tokens,
            "context_tokens": found.context_tokens,
        },
        "memory": {
            "verdict": found.memory.verdict,
            "reason": _reason(found.memory) or None,
            "kv_cache_tokens": _bounds(found.memory.kv_cache_tokens),
            "requests_at_once": _bounds(found.requests_at_once) if found.requests_at_once else None,
        },
        "largest_num_speculative_tokens": found.most_tokens,
        "points": [
            {**_point(load), "fits_kv_cache": found.fits(load.concurrency), "recommended": _given(given)}
            for load, given in zip(found.loads, recommended, strict=True)
        ],
        "num_speculative_tokens": schedule.largest if schedule else 0,
        "num_speculative_tokens_per_batch_size": (
            schedule.ranges if schedule and not schedule.is_constant else None
        ),
        "recommended_mean_speedup": round(found.mean_gain, 4) if found.mean_gain else None,
        "no_schedule_because": found.why_constant,
        "memory_bound_up_to_tokens": round(found.free_tokens, 1),
        "rests_on": found.basis,
    }
    return json_document(content)


def _bounds(value: Bounds) -> dict[str, int]:
    return {"low": int(value.low), "high": int(value.high)}


def _given(given: Given | None) -> dict[str, Any] | None:
    if given is None:
        return None
    return {"num_speculative_tokens": given.tokens, "speedup": _interval(given.speedup)}


def _interval(value: Interval) -> dict[str, float]:
    return {name: round(number, 4) for name, number in picked(value, "value", "low", "high").items()}


def _point(load: Estimated) -> dict[str, Any]:
    rounded = {
        "tpot_ms": load.tpot_ms,
        "step_ms": load.step_ms,
        "plain_step_ms": load.plain_step_ms,
        "break_even_mean_acceptance_length": load.break_even,
        "assumed_mean_acceptance_length": load.mean_length,
        "draft_share_of_step": load.draft_share,
    }
    return {
        "concurrency": load.concurrency,
        "num_speculative_tokens": load.tokens,
        "speedup": _interval(load.speedup),
        "output_tokens_per_s": round(load.tokens_per_s, 2),
        **{name: round(value, 4) for name, value in rounded.items()},
    }
