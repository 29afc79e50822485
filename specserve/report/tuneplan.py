"""What a tune would launch and send, before anything is. Computes nothing."""

from __future__ import annotations

import json
import shlex
from typing import Any

from specserve.measure.tune.budget import duration
from specserve.measure.tune.ladder import as_ranges
from specserve.measure.tune.wish import TUNED, in_words
from specserve.report.console import clean


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
        f"{loads} at once: {wish.prompts} prompts each to choose by"
        + (", the others to confirm" if ready.confirms else "")
    )
    other = other_hardware(ready)
    if other is not None:
        lines.append(
            f"Planned for this machine ({wish.platform}); the profile names {clean(other)}: measure there, or "
            "reckon with `--estimate`"
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
        return f"Measured on {found.begun} already: the same command tells that run, and launches nothing: {path}"
    return f"Begun on {found.begun}: the same command goes on with that run, and measures what is missing: {path}"


def plan_json(ready: Any, found: Any = None) -> str:
    """For scripts."""
    wish, fitted = ready.wish, ready.fitted
    content = {
        "version": 1,
        "kind": "tune-plan",
        "launches": [{"name": name, "argv": list(argv), "why": why} for name, argv, why in launches(ready)],
        "seconds_guessed": round(fitted.seconds),
        "share_of_prompts": fitted.share,
        "fits": fitted.fits,
        "exceeded": fitted.exceeded,
        "platform": wish.platform,
        "other_hardware": other_hardware(ready),
        "workloads": list(wish.workloads),
        "temperatures": list(wish.temperatures),
        "concurrency": list(wish.loads),
        "concurrency_between": list(wish.extras(None)),
        "confirms": ready.confirms,
        "objective": wish.objective,
        "left_out": [{"name": name, "reason": reason} for name, _, reason in wish.left_out]
        + [{"name": in_words(name), "reason": reason} for name, reason in fitted.left_out],
        "run": None
        if found is None
        else {
            "path": str(found.path),
            "begun": found.begun,
            "is_complete": found.answers(ready.asked),
        },
    }
    return json.dumps(content, indent=2)


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
        why += f"; its steps are also timed at {between} at once"
    found = [("baseline", wish.baseline.plan.argv, why)]
    for each in ready.kept:
        if each.rungs:
            why = f"K by batch size in one launch: {json.dumps(as_ranges(each.rungs))}"
        else:
            why = f"K = {each.most_tokens} at every load ({each.why_no_ladder})"
        why += "".join(f", with {name}={value}" for name, value in each.env.items())
        found.append((each.name, each.arm.plan.argv, why))
    if TUNED in ready.fitted.kept and ready.confirms:
        beside = "turn by turn with the baseline" if ready.room.at_once >= 2 else "after the others"
        found.append((TUNED, (), f"what is chosen, on other prompts, {beside}"))
    return found
