"""A tune's result as JSON. Computes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from specserve.measure.tune.result import Row, TuneResult


def as_json_text(found: TuneResult) -> str:
    """For scripts, and for the run's directory."""
    return json.dumps(as_json(found), indent=2, allow_nan=False) + "\n"


def as_json(found: TuneResult) -> dict[str, Any]:
    """Every figure says whether it was measured or predicted."""
    choice = found.choice
    return {
        "version": 1,
        "kind": "tune",
        "name": found.name,
        "fingerprint": found.fingerprint,
        "created": found.created,
        "duration_s": round(found.duration_s, 1),
        "versions": dict(found.versions),
        "host": dict(found.host),
        "runner": found.runner,
        "platform": found.platform,
        "objective": found.objective,
        "launches": found.launches,
        "choice": {
            "speculates": choice.speculates,
            "reason": choice.reason,
            "candidate": choice.candidate,
            "speculation": _plain(choice.speculation),
            "env": dict(choice.env),
            "num_speculative_tokens_by_concurrency": {
                str(load): k for load, k in sorted(choice.by_load.items())
            },
            "num_speculative_tokens_per_batch_size": _plain(choice.schedule),
        },
        "candidates": [_plain(dataclasses.asdict(each)) for each in found.candidates],
        "baseline": [
            {"point": place, "concurrency": load, "output_tokens_per_s": round(rate, 3), "basis": "measured"}
            for place, by_load in found.baseline.items()
            for load, rate in sorted(by_load.items())
        ],
        "points": [_row(row) for row in found.rows],
        "plain_points": [_row(row) for row in found.plain_rows],
        "lowest_latency": _row(found.lowest_latency) if found.lowest_latency else None,
        "highest_throughput": _row(found.highest_throughput) if found.highest_throughput else None,
        "confirmed": [_plain(dataclasses.asdict(each) | {"miss": each.miss}) for each in found.confirmed],
        "confirmed_turn_by_turn": found.is_interleaved,
        "causes_of": _row(found.caused) if found.caused else None,
        "causes": [_plain(dataclasses.asdict(cause)) for cause in found.causes],
        "per_position_acceptance": {place: list(rates) for place, rates in found.per_position.items()},
        "notes": list(found.notes),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "candidate": row.candidate,
        "workload": row.workload,
        "temperature": row.temperature,
        "concurrency": row.concurrency,
        "num_speculative_tokens": row.tokens,
        "mean_acceptance_length": _plain(dataclasses.asdict(row.mean_length)) if row.mean_length else None,
        "mean_acceptance_length_basis": row.length_basis,
        "break_even_mean_acceptance_length": _plain(row.break_even),
        "step_ms": _plain(row.step_ms),
        "step_basis": row.step_basis,
        "predicted": {
            "tpot_ms": _plain(row.tpot_ms),
            "plain_tpot_ms": _plain(row.plain_tpot_ms),
            "output_tokens_per_s": _plain(row.tokens_per_s),
            "speedup": _plain(dataclasses.asdict(row.speedup)),
            "within_limits": row.within_limits,
            "plain_within_limits": row.plain_within_limits,
        },
        "measured": {
            "output_tokens_per_s": _plain(row.measured_tokens_per_s),
            "tpot_ms": _plain(row.measured_tpot_ms),
        },
    }


def _plain(value: Any) -> Any:
    """What JSON can hold: no infinity, figures of six digits."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
