"""Fit the constants of the memory bounds on public boot logs, and score the estimate on them or on others.

    python scripts/fit_memory.py              fit anew: prints what constants.toml should hold, and the scores
    python scripts/fit_memory.py --write      and writes the lines that are marked as fitted
    python scripts/fit_memory.py --score FILE score other logs, with the constants as they are

Fits nothing on what `--score` names. Everything else in constants.toml was read in vLLM's sources.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_points import GIB, Row, intermediate, read, reported, row, situation

from specserve.plan.memory.shape import shape

ROOT = Path(__file__).resolve().parents[1]
POINTS = ROOT / "tests" / "plan" / "memory" / "vram_points.jsonl"
CONSTANTS = ROOT / "specserve" / "plan" / "memory" / "constants.toml"
REGIME = "v1_no_graph_deduction"
SINCE = "0.17"


def main() -> None:
    """Fit or score, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--score", type=Path, nargs="*", metavar="FILE", help="logs to score only")
    parser.add_argument("--write", action="store_true", help="write the fitted lines")
    arguments = parser.parse_args()
    if not arguments.score:
        lines = fitted(read(POINTS))
        print("\n".join(f"{name} = {value} # fitted" for name, value in lines.items()), end="\n\n")
        if arguments.write:
            CONSTANTS.write_text(rewritten(CONSTANTS.read_text(encoding="utf-8"), lines), encoding="utf-8")
    points = [point for file in arguments.score or [POINTS] for point in read(file)]
    print("\n".join(scores([found for point in points if (found := row(point))], among=len(points))))


def fitted(points: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The constants of the regime that the points pin down."""
    seen = [point for point in points if point.get("regime") == REGIME and _since(point)]
    peaks = [peak for point in seen if (peak := _peak(point))]
    slope = sum(left * logits for left, logits in peaks) / sum(logits**2 for _, logits in peaks)
    ratios = [left / (slope * logits) for left, logits in peaks]
    # twice what was missed: one kind of GPU and one attention backend are all that was seen
    margin = math.ceil(200 * max(abs(ratio - 1) for ratio in ratios)) / 100
    outside = [
        point["reported_non_torch_gib"]
        for point in seen
        if _alone(point) and "reported_non_torch_gib" in point
    ]
    return {
        "logit_bytes": f"[{slope:.2f}, {slope:.2f}]",
        "spread": f"[{1 - margin:.2f}, {1 + margin:.2f}]",
        "tp1_gib": f"[{max(0.0, min(outside) - 0.2):.2f}, {max(outside) + 0.1:.2f}]",
    }


def _since(point: dict[str, Any]) -> bool:
    return tuple(map(int, str(point["vllm_version"]).split(".")[:2])) >= (0, 17)


def _alone(point: dict[str, Any]) -> bool:
    return int(point.get("tp") or 1) == 1 and int(point.get("pp") or 1) == 1


def _peak(point: dict[str, Any]) -> tuple[float, float] | None:
    """(Peak less hidden states and experts, rows times vocabulary), where the sampler is the peak."""
    activation = reported(point, "activation")
    if activation is None or int(point.get("pp") or 1) > 1 or point["config"].get("pattern"):
        return None
    s = situation(point)
    sizes, tokens = shape(s.target), s.settings.max_num_batched_tokens
    hidden = tokens * sizes.hidden * sizes.dtype_bytes
    experts = (
        tokens * sizes.experts_per_token * (2 * sizes.expert_intermediate + sizes.hidden) * sizes.dtype_bytes
    )
    layers = (
        tokens * 3 * intermediate(point["config"]) * sizes.dtype_bytes / s.settings.tensor_parallel_size
        + 4 * hidden
    )
    if layers > 0.9 * activation:
        return None
    return activation - 1.42 * hidden - experts, s.settings.max_num_seqs * sizes.vocab


def rewritten(text: str, lines: dict[str, str]) -> str:
    """constants.toml with these values on the lines that are marked as fitted."""
    for name, value in lines.items():
        text = re.sub(rf"^{name} = .* # fitted$", f"{name} = {value} # fitted", text, flags=re.M)
    return text


def scores(rows: Sequence[Row], *, among: int) -> list[str]:
    """How good the estimate is, in lines: weights, KV cache, intervals, verdicts."""
    weights = [
        abs(found.weights_bytes / given - 1)
        for found in rows
        if found.weights_bytes and (given := reported(found.point, "weights"))
    ]
    measured = [(found, given) for found in rows if (given := reported(found.point, "kv")) is not None]
    errors = [_error(found, given) for found, given in measured]
    inside = [_inside(found, given) for found, given in measured]
    verdicts = Counter((str(found.point["outcome"]) == "serves", found.estimate.verdict) for found in rows)
    tight = sum(count for (_, verdict), count in verdicts.items() if verdict == "tight")
    lines = [f"{len(rows)} of {among} logs can be judged"]
    if weights:
        lines.append(
            f"weights       MAPE {statistics.mean(weights):.2%} over {len(weights)}, worst {max(weights):.2%}"
        )
    if errors:
        middle, worst = statistics.median(errors), max(errors)
        lines.append(
            f"KV cache      median error {middle:.2%} of the GPU over {len(errors)}, worst {worst:.2%}"
        )
        lines.append(f"intervals     {statistics.mean(inside):.0%} hold what was reported")
    lines += [
        f"{'serves' if served else 'fails':<13} {verdict:<13} {count}"
        for (served, verdict), count in sorted(verdicts.items())
    ]
    lines.append(f"false FIT     {verdicts[(False, 'fit')]}")
    lines.append(f"TIGHT rate    {tight / max(1, len(rows)):.0%}")
    return lines


def _error(found: Row, given: float) -> float:
    """Distance of the interval's middle, as a share of the GPU's memory."""
    kv = found.estimate.per_gpu_bytes.kv_cache
    return abs((kv.low + kv.high) / 2 - given) / found.estimate.per_gpu_bytes.total


def _inside(found: Row, given: float) -> bool:
    """Whether the interval holds the figure, within the log's rounding."""
    kv, rounding = found.estimate.per_gpu_bytes.kv_cache, 0.006 * GIB
    return kv.low - rounding <= given <= kv.high + rounding


if __name__ == "__main__":
    main()
