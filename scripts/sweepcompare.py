"""Tunes against a sweep: what was lost by asking less, and how far the predictions are off."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweepdata import ALL, by_load


def compared(sweep: Mapping[str, Any], tunes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each tune against the sweep: its choice for all its workloads, what it says is best of each, its predictions."""
    misses: dict[str, list[float]] = {"speedup": [], "tokens/s": []}
    losses: dict[str, list[float]] = {"choice": [], "best by prediction": []}
    places = by_load(sweep["points"])
    swept = len({row["num_speculative_tokens"] for row in sweep["points"]})
    for tune in tunes:
        chosen_by_load = tune["choice"]["num_speculative_tokens_by_concurrency"]
        said = {
            (row["workload"], row["concurrency"], row["num_speculative_tokens"]): row["predicted"]
            for row in tune["points"]
        }
        shared = set()
        for (workload, load), rows in places.items():
            if workload == ALL:
                continue
            of = {row["num_speculative_tokens"]: row for row in rows}
            told = {tokens: said[workload, load, tokens] for tokens in of if (workload, load, tokens) in said}
            if not told:
                continue
            shared.add(load)
            for tokens, predicted in told.items():
                misses["speedup"].append(abs(predicted["speedup"]["value"] / of[tokens]["speedup"] - 1))
                rate = predicted["output_tokens_per_s"] / of[tokens]["output_tokens_per_s"]
                misses["tokens/s"].append(abs(rate - 1))
            wanted = max([0, *told], key=lambda tokens: told[tokens]["speedup"]["value"] if tokens else 1.0)
            best = max(rows, key=lambda row: row["speedup"])
            losses["best by prediction"].append(1 - of[wanted]["speedup"] / best["speedup"])
            yield f"{workload}, {load} at once: predicted best {_told(of[wanted])}; best {_told(best)}"
        for load in sorted(shared):
            of = {row["num_speculative_tokens"]: row for row in places[ALL, load]}
            best = max(of.values(), key=lambda row: row["speedup"])
            chosen = of[int(chosen_by_load.get(str(load), 0))]
            losses["choice"].append(1 - chosen["speedup"] / best["speedup"])
            yield (
                f"all workloads, {load} at once: chose {_told(chosen)}; "
                f"best {_told(best)}: {losses['choice'][-1]:.1%} less"
            )
        yield f"{tune['launches']} launches instead of {swept}"
    for what, found_losses in losses.items():
        if found_losses:
            middle, most = statistics.median(found_losses), max(found_losses)
            yield f"{what}: {middle:.1%} below the best in the median, {most:.1%} at most"
    for what, found_misses in misses.items():
        if found_misses:
            median = statistics.median(found_misses)
            yield f"{what} predicted against measured: {median:.1%} off in the median of {len(found_misses)}"


def _told(row: Mapping[str, Any]) -> str:
    return f"K = {row['num_speculative_tokens']}, {row['speedup']:.3f}x (tokens/s ± {row['half_width']:.1%})"
