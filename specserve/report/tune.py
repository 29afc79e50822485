"""What a tune found, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specserve.measure.tune.result import Confirmed, Row, TuneResult
from specserve.report.console import clean, filled

_MISS = 0.10


def text(found: TuneResult) -> str:
    """For a person."""
    lines = [f"{clean(found.name)} on {_where(found)}"]
    for place in dict.fromkeys((row.workload, row.temperature) for row in found.rows):
        for candidate in dict.fromkeys(row.candidate for row in found.rows):
            rows = [
                row
                for row in found.rows
                if (row.workload, row.temperature) == place and row.candidate == candidate
            ]
            lines += ["", *_table(found, candidate, place, rows)]
    lines += ["", *_choice(found)]
    if found.confirmed:
        lines += ["", *_confirmed(found)]
    if found.causes:
        lines += ["", *_causes(found)]
    lines += ["", *_footer(found)]
    return "\n".join(lines).rstrip()


def _where(found: TuneResult) -> str:
    accelerator = found.host.get("accelerator", found.platform)
    return (
        f"{clean(accelerator)}, vLLM {clean(found.versions.get('vllm', '?'))}, runner {found.runner.upper()}"
    )


def _table(found: TuneResult, candidate: str, place: tuple[str, float], rows: Sequence[Row]) -> Iterator[str]:
    """Output tokens/s by K and load."""
    workload, temperature = place
    loads = sorted({row.concurrency for row in rows})
    most = max((row.tokens for row in rows), default=0)
    yield f"{clean(workload)}, temperature {temperature:g}, {clean(candidate)}: output tokens/s by requests at once"
    yield f"{'K':>3} {'tokens a step':>15}" + "".join(f"{load:>14d}" for load in loads)
    plain = found.baseline.get(f"{workload}/{temperature:g}", {})
    yield f"{0:>3} {1.0:>15.2f}" + "".join(f"{plain.get(load, 0.0):>12.1f} m" for load in loads)
    by_place = {(row.tokens, row.concurrency): row for row in rows}
    lasting = {row.concurrency: row for row in found.plain_rows if (row.workload, row.temperature) == place}
    for tokens in range(1, most + 1):
        cells = [by_place.get((tokens, load)) for load in loads]
        length = next((row.mean_length for row in cells if row is not None), None)
        told = f"{length.value:.2f}" if length else "unknown"
        yield f"{tokens:>3} {told:>15}" + "".join(_cell(row, found) for row in cells)
    yield "   m measured, p predicted, p~m both, at full load; * chosen"
    yield from _latencies(found, by_place, lasting, loads=loads, most=most)


def _latencies(
    found: TuneResult,
    by_place: Mapping[tuple[int, int], Row],
    plain: Mapping[int, Row],
    *,
    loads: Sequence[int],
    most: int,
) -> Iterator[str]:
    """Milliseconds a token by K and load, and where the profile has limits, the share of requests within them."""
    limited = any(row.within_limits is not None for row in by_place.values())
    yield f"{'K':>3} {'ms a token':>15}" + "".join(f"{load:>14d}" for load in loads)
    for tokens in range(most + 1):
        cells = [plain.get(load) if not tokens else by_place.get((tokens, load)) for load in loads]
        if any(cells):
            yield f"{tokens:>3} {'':>15}" + "".join(_latency(row, found) for row in cells)
    if limited:
        yield "   in brackets: the share of requests within the profile's limits, predicted for K above 0"


def _latency(row: Row | None, found: TuneResult) -> str:
    if row is None:
        return f"{'-':>14}"
    within = f" ({row.within_limits:.0%})" if row.within_limits is not None else ""
    mark = "*" if found.is_chosen(row) else " "
    if row.tokens and row.measured_tpot_ms is not None:
        return f"{mark}{row.tpot_ms:.0f}~{row.measured_tpot_ms:.1f} m{within}".rjust(14)
    return f"{mark}{row.tpot_ms:.1f} {'p' if row.tokens else 'm'}{within}".rjust(14)


def _cell(row: Row | None, found: TuneResult) -> str:
    if row is None:
        return f"{'-':>14}"
    mark = "*" if found.is_chosen(row) else " "
    if row.measured_tokens_per_s is not None:
        return f"{mark}{row.tokens_per_s:.0f}~{row.measured_tokens_per_s:.1f} m".rjust(14)
    return f"{mark}{row.tokens_per_s:.1f} p".rjust(14)


def _choice(found: TuneResult) -> Iterator[str]:
    choice = found.choice
    if not choice.speculates:
        yield "Run without speculation."
        yield filled(choice.reason, lead="  ", stream=sys.stdout)
        return
    assert choice.speculation is not None
    yield f"Choose {clean(str(choice.candidate))}, by {found.objective}: predicted {choice.reason}"
    for name in ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "draft_sample_method"):
        if name in choice.speculation:
            yield f"  {name}: {json.dumps(choice.speculation[name])}"
    for load, tokens in sorted(choice.by_load.items()):
        rows = [
            row for row in found.rows
            if (row.candidate, row.concurrency, row.tokens) == (choice.candidate, load, tokens)
        ]  # fmt: skip
        for row in rows:
            yield _told(row, found)
        if not tokens:
            zero = f"{_zero_cost(found):.2f}x of a server without speculation (its step measured)"
            yield f"  {load:>3} at once: K = 0, {zero}"


def _zero_cost(found: TuneResult) -> float:
    mine = next((each for each in found.candidates if each.name == found.choice.candidate), None)
    return (mine.zero_cost if mine else None) or 1.0


def _told(row: Row, found: TuneResult) -> str:
    length = row.mean_length.value if row.mean_length else 0.0
    place = clean(found.place(row, lead="T = "))
    head = f"  {row.concurrency:>3} at once, {place}: K = {row.tokens}"
    told = f"{row.speedup.value:.2f}x the tokens/s predicted ({row.speedup.low:.2f}-{row.speedup.high:.2f})"
    if found.objective == "tpot":
        told = f"{row.tpot_ms:.1f} ms a token predicted, {row.plain_tpot_ms:.1f} without"
    needed = f"{row.break_even:.2f} needed" if row.break_even > 1 else "any length pays"
    return f"{head}, {told}; {length:.2f} tokens a step, {needed}"


def _confirmed(found: TuneResult) -> Iterator[str]:
    how = "turn by turn with" if found.is_interleaved else "after"
    yield f"Confirmed on other prompts, {how} the server without speculation (measured, 95 % interval)"
    for each in found.confirmed:
        yield _confirmation(each, found)
    missed = [each for each in found.confirmed if abs(each.miss) > _MISS]
    if missed:
        yield (
            f"warning: the model missed {len(missed)} of {len(found.confirmed)} points by more than {_MISS:.0%}: "
            "trust what was measured"
        )


def _confirmation(each: Confirmed, found: TuneResult) -> str:
    item = each.comparison
    point = item.point
    where = f"  {point.concurrency or 0:>3} at once, {clean(found.place(point, lead='T = '))}"
    if item.speedup is None:
        return f"{where}: not measured"
    kept = ""
    if each.within_limits is not None and each.plain_within_limits is not None:
        kept = f"; within the limits {each.within_limits:.0%}, without {each.plain_within_limits:.0%}"
    return (
        f"{where}: {item.speedup.value:.2f}x ({item.speedup.low:.2f}-{item.speedup.high:.2f}) {item.verdict}; "
        f"predicted {each.predicted_speedup:.2f}x{kept}"
    )


def _causes(found: TuneResult) -> Iterator[str]:
    row = found.caused
    where = (
        f" ({clean(row.workload)}, {row.concurrency} at once, K = {row.tokens})" if row is not None else ""
    )
    yield f"What keeps it from more{where}"
    for cause in found.causes:
        share = f"{cause.share:>4.0%}" if cause.share is not None else "   -"
        yield f"  {share}  {cause.name}: {clean(cause.told)}"
        if cause.share is None or cause.share >= 0.1:
            yield filled(cause.moves, lead="        moved by ", stream=sys.stdout)


def _footer(found: TuneResult) -> Iterator[str]:
    for each in found.candidates:
        if each.left_out:
            yield f"not measured: {clean(each.name)}: {clean(each.left_out)}"
    for note in found.notes:
        yield filled(clean(note), lead="note: ", stream=sys.stdout)
    measured = [each for each in found.candidates if each.left_out is None]
    most = max((each.measured_with or 0 for each in measured), default=0)
    yield f"{found.launches} launches, {found.duration_s / 60:.1f} min; above K = {most} nothing is known"


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
