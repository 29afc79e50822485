"""What a tune would launch and send, before anything is. Computes nothing."""

from __future__ import annotations

import json
import shlex
from typing import Any

from specserve.measure.tune.budget import duration
from specserve.measure.tune.ladder import as_ranges
from specserve.measure.tune.wish import TUNED
from specserve.report.console import clean


def plan_text(ready: Any) -> str:
    """For a person."""
    wish, fitted = ready.wish, ready.fitted
    lines = [f"Would launch {len(fitted.kept)} servers, about {duration(fitted.seconds)} (a guess):"]
    for name, argv, why in launches(ready):
        lines.append(f"  {clean(name):<24} {why}")
        if argv:
            lines.append(f"    {clean(shlex.join(argv))}")
    loads = ", ".join(map(str, wish.loads))
    lines.append(
        f"Sends {', '.join(wish.workloads)} at temperature {', '.join(f'{t:g}' for t in wish.temperatures)}, "
        f"{loads} at once: {wish.prompts} prompts each to choose by, the others to confirm"
    )
    for name, _, reason in wish.left_out:
        lines.append(f"Not measured: {clean(name)}: {clean(reason)}")
    for name, reason in fitted.left_out:
        lines.append(f"Left out: {clean(name)}: {reason}")
    if not fitted.fits:
        lines.append("That is more than `--budget` or `--max-launches` allows.")
    return "\n".join(lines)


def plan_json(ready: Any) -> str:
    """For scripts."""
    wish, fitted = ready.wish, ready.fitted
    content = {
        "version": 1,
        "kind": "tune-plan",
        "launches": [{"name": name, "argv": list(argv), "why": why} for name, argv, why in launches(ready)],
        "seconds_guessed": round(fitted.seconds),
        "share_of_prompts": fitted.share,
        "fits": fitted.fits,
        "workloads": list(wish.workloads),
        "temperatures": list(wish.temperatures),
        "concurrency": list(wish.loads),
        "objective": wish.objective,
        "left_out": [{"name": name, "reason": reason} for name, _, reason in wish.left_out]
        + [{"name": name, "reason": reason} for name, reason in fitted.left_out],
    }
    return json.dumps(content, indent=2)


def launches(ready: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """Name, command and purpose of each."""
    wish = ready.wish
    found = [("baseline", wish.baseline.plan.argv, "the same server without speculation")]
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
