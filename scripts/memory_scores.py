"""The memory estimate against boot logs: one launch's score, and tables by vLLM version."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from memory_points import GIB, Row, logged_kv, row

from specserve.memory.breakdown import Breakdown, break_down
from specserve.memory.constants import Regime
from specserve.memory.verdict import MemoryVerdict, verdict_of, verdict_without_states
from specserve.vllm.fact import minor

GROUPS: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "before 0.8": ((0, 0), (0, 8)),
    "0.8 to 0.16": ((0, 8), (0, 17)),
    "0.17 to 0.20": ((0, 17), (0, 21)),
    "0.21 and later": ((0, 21), (99, 0)),
}


class Score(NamedTuple):
    """One launch against its log."""

    group: str
    verdict: str | None
    """None where only the KV cache can be compared."""
    serves: bool
    error: float | None
    """Distance of the interval's middle from the log's figure, as a share of the GPU's memory."""
    is_inside: bool
    width: float
    point: Mapping[str, Any]


def score(launch: Row, rules: Regime | None = None) -> Score:
    """One launch, with the constants that ship or with others."""
    s = launch.situation
    r = break_down(s, needed=launch.demand, rules=rules)
    kv, logged, total = r.kv_cache[r.poorest], logged_kv(launch), s.machine.accelerator.total_bytes
    version = minor(s.settings.version)
    group = next(name for name, (first, end) in GROUPS.items() if first <= version < end)
    serves = str(launch.point["outcome"]) == "serves"
    found = _verdict(launch, r) if launch.demand.groups else None
    if logged is None:
        return Score(group, found, serves, None, False, (kv.high - kv.low) / total, launch.point)
    rounding = 0.006 * GIB
    is_inside = kv.low - rounding <= logged <= kv.high + rounding
    error = abs((kv.low + kv.high) / 2 - logged) / total
    return Score(group, found, serves, error, is_inside, (kv.high - kv.low) / total, launch.point)


def _verdict(launch: Row, r: Breakdown) -> MemoryVerdict:
    """The verdict, as far as the log tells the launch: without a number of requests states are not compared, and
    without a length what is too long may still be shorter."""
    judge = verdict_of if launch.point.get("max_num_seqs") else verdict_without_states
    found, any_length = judge(r), replace(r, situation=replace(r.situation, is_auto_length=True))
    is_told = found != "does_not_fit" or launch.point.get("max_model_len")
    return found if is_told or judge(any_length) == "does_not_fit" else "tight"


def table_lines(title: str, scores: Sequence[Score]) -> list[str]:
    """A table of scores by vLLM version, in Markdown."""
    lines = [
        f"**{title}**",
        "",
        "| vLLM | launches | KV cache: logs | median error | inside | median width | false `fits` "
        "| false `does not fit` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in (*GROUPS, "all"):
        chosen = [found for found in scores if group in ("all", found.group)]
        if chosen:
            lines.append(_line(group, chosen))
    return lines


def _line(group: str, scores: Sequence[Score]) -> str:
    measured = [found for found in scores if found.error is not None]
    figures = ["-", "-", "-"]
    if measured:
        figures = [
            f"{statistics.median(found.error or 0.0 for found in measured):.1%}",
            f"{statistics.mean(found.is_inside for found in measured):.0%}",
            f"{statistics.median(found.width for found in measured):.1%}",
        ]
    judged = Counter((found.serves, found.verdict) for found in scores if found.verdict)
    failed = sum(count for (serves, _), count in judged.items() if not serves)
    served = sum(count for (serves, _), count in judged.items() if serves)
    wrong = f"{judged[False, 'fit']} of {failed}", f"{judged[True, 'does_not_fit']} of {served}"
    return f"| {group} | {len(scores)} | {len(measured)} | {' | '.join(figures)} | {' | '.join(wrong)} |"


def unscored_lines(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many points cannot be scored, and which for what reason."""
    why: dict[str, list[str]] = {}
    for point in points:
        launch = row(point)
        if isinstance(launch, str):
            why.setdefault(launch, []).append(str(point.get("id") or point.get("model")))
    count = sum(map(len, why.values()))
    return [f"Not scored: {count}"] + [
        f"- {reason}: {', '.join(names)}" for reason, names in sorted(why.items())
    ]
