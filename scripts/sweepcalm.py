"""What a pass would have been on the calm machine: the neighbours of a shared one are no property of a K.

Beside others a step of the same server at the same load takes up to a third longer, for seconds or minutes, which no
order of turns makes up for. But the steps of a pass tell how much longer: those of all passes of a server at a load are
the same work, and the quickest tenth of them is what it takes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from specserve.measure.bench.records import Pass
from specserve.measure.tune.gaps import steady_gaps_s
from specserve.measure.tune.steady import steady

QUICK = 0.1
"""The share of the steps that are quicker than the calm one."""
_DRAWS = 50
_LONGEST = 2.0
"""Medians: what is longer is a prefill that steps waited for."""

Server = tuple[str, float, int]


def server_of(done: Pass) -> Server:
    """Arm, temperature, load: what a step takes depends on nothing else."""
    return done.arm, done.point.temperature, done.point.concurrency or 0


def calm(passes: Sequence[Pass]) -> list[Pass]:
    """Each pass at its full load, its steps as long as on the calm machine. First tokens stay as they came."""
    steps_s = {server: _quick_s(held) for server, held in _by_server(passes).items()}
    found = []
    for done in passes:
        kept = steady(done)
        steps = sum(len(request.chunk_gaps_ms) for request in done.requests if request.ok)
        late_s = steps * (_usual_s(done) - steps_s[server_of(done)]) / max(1, done.point.concurrency or 1)
        found.append(replace(kept, duration_s=kept.duration_s - late_s))
    return found


def doubts(passes: Sequence[Pass]) -> dict[Server, float]:
    """Half a 95 % interval of each server's calm step, as a share: by passes drawn anew."""
    rng = random.Random(0)
    found = {}
    for server, held in _by_server(passes).items():
        drawn = [_quick_s(rng.choices(held, k=len(held))) for _ in range(_DRAWS)]
        step_s = _quick_s(held)
        found[server] = 1.96 * statistics.stdev(drawn) / step_s if step_s else 0.0
    return found


def _by_server(passes: Sequence[Pass]) -> Mapping[Server, list[Pass]]:
    found: dict[Server, list[Pass]] = {}
    for done in passes:
        found.setdefault(server_of(done), []).append(done)
    return found


def _quick_s(passes: Sequence[Pass]) -> float:
    gaps = [gap for done in passes for gap in steady_gaps_s(done)]
    return float(np.quantile(gaps, QUICK)) if gaps else 0.0


def _usual_s(done: Pass) -> float:
    gaps = steady_gaps_s(done)
    if not gaps:
        return 0.0
    most = _LONGEST * statistics.median(gaps)
    return statistics.fmean(gap for gap in gaps if gap <= most)
