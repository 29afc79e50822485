"""An estimate of `tune` as text and as JSON: every figure says that it is estimated. Computes nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

from specserve.measure.tune.estimated import Estimate
from specserve.measure.tune.roofline import Estimated
from specserve.report.console import clean, filled


def estimate_text(found: Estimate, *, name: str) -> str:
    """For a person, at 80 columns."""
    machine = found.machine
    where = f"{machine.count * machine.nodes}x {machine.accelerator.name}"
    lines = [
        f"Estimated, nothing was measured: {clean(name)} ({found.method}) on {where},",
        f"acceptance {found.acceptance:g} of each draft token, {found.context_tokens:,.0f} tokens of context",
        "",
        "requests  K   speedup           tokens/s     TPOT    step   AL needed  AL assumed",
    ]
    lines += [_row(load) for load in found.loads]
    lines += ["", *_verdict(found), "", "Basis"]
    ridge = f"a step stays bound by memory up to about {found.free_tokens:,.0f} tokens, draft tokens included"
    lines += [filled(line, lead="  - ", stream=sys.stdout) for line in (*found.basis, ridge)]
    return "\n".join(lines)


def _row(load: Estimated) -> str:
    speedup = f"{load.speedup.value:.2f}x ({load.speedup.low:.2f}-{load.speedup.high:.2f})"
    shown = speedup if load.tokens else f"none: K = 1 {load.speedup.value:.2f}x"
    return (
        f"{load.concurrency:8d}  {load.tokens:<2d}  {shown:<17} {load.tokens_per_s:8,.0f} "
        f"{load.tpot_ms:6.1f} ms {load.step_ms:5.1f} ms  {load.break_even:9.2f}  {load.mean_length:10.2f}"
    )


def _verdict(found: Estimate) -> list[str]:
    gains = [load for load in found.loads if load.tokens]
    if not gains or found.schedule is None:
        return ["Speculation gains nothing at any of these loads: a draft step costs more than it brings."]
    lines = []
    if found.schedule.is_constant:
        lines.append(f"num_speculative_tokens: {found.schedule.largest}")
    else:
        ranges = [list(each) for each in found.schedule.ranges]
        lines += [
            f"num_speculative_tokens: {found.schedule.largest}",
            f"num_speculative_tokens_per_batch_size: {json.dumps(ranges)}",
        ]
    ends = next((load for load in found.loads if not load.tokens), None)
    if ends is not None:
        lines.append(f"From {ends.concurrency} requests on it gains nothing by this estimate.")
    return lines


def estimate_json(found: Estimate, *, name: str) -> str:
    """For scripts; `basis` is `estimated` throughout."""
    machine = found.machine
    schedule = found.schedule
    content: dict[str, Any] = {
        "version": 1,
        "kind": "estimate",
        "basis": "estimated",
        "profile": name,
        "accelerator": machine.accelerator.name,
        "count": machine.count,
        "nodes": machine.nodes,
        "method": found.method,
        "assumed": {"acceptance": found.acceptance, "context_tokens": found.context_tokens},
        "largest_num_speculative_tokens": found.most_tokens,
        "points": [_point(load) for load in found.loads],
        "num_speculative_tokens": schedule.largest if schedule else 0,
        "num_speculative_tokens_per_batch_size": (
            [list(each) for each in schedule.ranges] if schedule and not schedule.is_constant else None
        ),
        "memory_bound_up_to_tokens": round(found.free_tokens, 1),
        "rests_on": list(found.basis),
    }
    return json.dumps(content, indent=2)


def _point(load: Estimated) -> dict[str, Any]:
    return {
        "concurrency": load.concurrency,
        "num_speculative_tokens": load.tokens,
        "speedup": {
            "value": round(load.speedup.value, 4),
            "low": round(load.speedup.low, 4),
            "high": round(load.speedup.high, 4),
        },
        "output_tokens_per_s": round(load.tokens_per_s, 2),
        "tpot_ms": round(load.tpot_ms, 4),
        "step_ms": round(load.step_ms, 4),
        "plain_step_ms": round(load.plain_step_ms, 4),
        "break_even_mean_acceptance_length": round(load.break_even, 4),
        "assumed_mean_acceptance_length": round(load.mean_length, 4),
        "draft_share_of_step": round(load.draft_share, 4),
    }
