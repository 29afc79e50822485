"""How sure a figure is, from counters alone: 95 % intervals. Pure; knows no requests one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specserve.measure.student import quantile
from specserve.measure.watch.stretch import Stretch
from specserve.metrics.acceptance import Acceptance
from specserve.metrics.histogram import Histogram

_Z = 1.959964
_GROUPS = 12
_LEAST_GROUPS = 5
Ratio = Callable[[Acceptance], tuple[int, int]]


def ratio_interval(groups: Sequence[Acceptance], ratio: Ratio) -> tuple[float, float] | None:
    """Where the ratio of two counts lies; None where the time is too short to tell how much it varies.

    The groups are taken as the sample: batch means, ratio estimator, Student's t.
    """
    pairs = [(upper, lower) for upper, lower in map(ratio, groups) if lower]
    count = len(pairs)
    if count < _LEAST_GROUPS:
        return None
    uppers, lowers = sum(upper for upper, _ in pairs), sum(lower for _, lower in pairs)
    value = uppers / lowers
    spread = sum((upper - value * lower) ** 2 for upper, lower in pairs)
    half = quantile(0.975, freedom=count - 1) * math.sqrt(spread * count / (count - 1)) / lowers
    return max(value - half, 0.0), value + half


def groups_of(stretches: Sequence[Stretch], *, request_s: float | None) -> list[Acceptance]:
    """The time in up to 12 groups, each as long as a request takes on average (`request_s`).

    Requests are the unit that varies, and counters do not tell them apart: in groups that are shorter, neighbours
    would be alike, and the interval too narrow.
    """
    if not stretches:
        return []
    seconds = stretches[-1].ended_s - stretches[0].began_s
    least_s = max(seconds / _GROUPS, request_s or 0.0)
    groups: list[Acceptance] = []
    kept, kept_s = Acceptance(), 0.0
    for part in stretches:
        kept, kept_s = kept + part.acceptance, kept_s + part.seconds
        if kept_s >= 0.99 * least_s:
            groups.append(kept)
            kept, kept_s = Acceptance(), 0.0
    if kept_s and groups:
        groups[-1] += kept
    return groups


def quantile_interval(observed: Histogram, share: float) -> tuple[float, float] | None:
    """Where a quantile lies, by the ranks that it can have and the edges of their buckets; None without any.

    The upper end is infinite where there are too few observations to bound it (a 99th percentile: under 470).
    """
    count = observed.count
    if not count:
        return None
    spread = _Z * math.sqrt(count * share * (1 - share))
    low_rank, high_rank = math.floor(count * share - spread), math.ceil(count * share + spread) + 1
    low = observed.around(low_rank)[0]
    high = observed.around(high_rank)[1] if high_rank <= count else math.inf
    return low, high
