"""The one figure of each part of a report, for the page and for the table of contributed reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpureport.memory import is_inside


def results_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """What was measured, by step."""
    return {step["key"]: step["result"] for step in steps if step["status"] in ("done", "partial")}


def compared(found: Mapping[str, Any]) -> tuple[float, float, float, str] | None:
    """Logged KV cache, both bounds, and the unit; None if either side is missing."""
    said, estimate = found.get("logged") or {}, found.get("predicted")
    if found.get("outcome") != "serves" or not estimate:
        return None
    for key, unit in (("kv_gib", "GiB"), ("kv_tokens", "tokens")):
        low, high = estimate[key]["low"], estimate[key]["high"]
        if key in said and low is not None and high is not None:
            return said[key], low, high, unit
    return None


def speedups(results: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the benchmarks, by K and concurrency; the sweep measures K = 4 again, in turn with the others."""
    found = {
        (row["k"], row["concurrency"]): row
        for step in ("speed-bench", "speed-sweep")
        for row in results.get(step, {}).get("rows", ())
    }
    return [found[place] for place in sorted(found)]


def headline(part: str, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The one figure of a part that a reader looks for first."""
    values = list(results.values())
    if part == "serve":
        asked = [each for each in values if each.get("prompts")]
        if asked:
            same, all_texts = (sum(each[key] for each in asked) for key in ("same_text", "prompts"))
            return f"{same} of {all_texts}", "greedy texts equal those without speculation"
    if part == "memory":
        boots = [row for each in values if (row := compared(each))]
        if boots:
            inside = sum(is_inside(said, low, high) for said, low, high, _ in boots)
            return f"{inside} of {len(boots)}", "KV caches inside the predicted bounds"
    if part == "judge":
        cases = [case for each in values for case in each.get("cases", ())]
        if cases:
            return f"{sum(case['agrees'] for case in cases)} of {len(cases)}", "profiles judged as vLLM does"
    if part == "speed":
        rows = [row for row in speedups(results) if row["speedup"]]
        if rows:
            best = max(rows, key=lambda row: float(row["speedup"]["value"]))
            return (
                f"{best['speedup']['value']:.2f}x",
                f"best speedup: K = {best['k']}, concurrency {best['concurrency']}",
            )
    return "-", "nothing measured yet"
