"""How sure a figure is, from counters alone: 95 % intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specserve.measure.student import quantile
from specserve.measure.watch.stretch import Stretch
from specserve.metrics.acceptance import Acceptance, total
from specserve.metrics.histogram import Histogram

_Z = 1.959964
_GROUPS = 12
_LEAST_GROUPS = 3
_REQUESTS_PER_GROUP = 1.5
"""A group lasts so many times as long as a request: neighbours that share one are alike."""
_CORRELATION = 0.5
"""Of the drafts of one request, assumed: requests whose acceptance varies by 0.15 come to about 0.15."""
Ratio = Callable[[Acceptance], tuple[int, int]]


def ratio_interval(groups: Sequence[Acceptance], ratio: Ratio) -> tuple[float, float] | None:
    """Return the interval of accepted tokens over another count; None if there are fewer than 3 groups.

    The groups are the sample: batch means, ratio estimator, Student's t. It is never narrower than that of as many
    independent drafts: groups of few drafts can be alike by chance.
    """
    pairs = [(upper, lower) for upper, lower in map(ratio, groups) if lower]
    count = len(pairs)
    if count < _LEAST_GROUPS:
        return None
    uppers, lowers = sum(upper for upper, _ in pairs), sum(lower for _, lower in pairs)
    value = uppers / lowers
    spread = sum((upper - value * lower) ** 2 for upper, lower in pairs) * count / (count - 1)
    whole = total(groups)
    variance = max(spread, whole.drafts * draft_variance(whole))
    half = quantile(0.975, freedom=count - 1) * math.sqrt(variance) / lowers
    return max(value - half, 0.0), value + half


def request_interval(whole: Acceptance, ratio: Ratio, *, requests: int) -> tuple[float, float] | None:
    """Return a wide interval of the same ratio for time that is too short for groups; None for under 2 requests.

    The drafts of one request are correlated, and counters do not tell by how much: a high correlation is assumed.
    """
    upper, lower = ratio(whole)
    if requests < 2 or not lower:
        return None
    share = _CORRELATION / requests + (1 - _CORRELATION) / whole.drafts
    error = whole.drafts * math.sqrt(draft_variance(whole) * share) / lower
    half = quantile(0.975, freedom=requests - 1) * error
    return max(upper / lower - half, 0.0), upper / lower + half


def draft_variance(whole: Acceptance) -> float:
    """Return the variance of the tokens that one draft has accepted.

    Two drafts are added, one accepted and one refused as a whole (Agresti and Coull): few drafts that are all alike
    do not prove that all are.
    """
    most = len(whole.accepted_per_position)
    drafts = whole.drafts + 2
    squares = sum((2 * index + 1) * count for index, count in enumerate(whole.accepted_per_position))
    mean = (whole.accepted_tokens + most) / drafts
    return max(0.0, (squares + most**2) / drafts - mean**2)


def groups_of(stretches: Sequence[Stretch], *, request_s: float | None) -> list[Acceptance]:
    """Return the time in up to 12 groups, each 1.5 times as long as a request takes on average (`request_s`).

    Drafts of one request are correlated, and counters do not tell requests apart: in shorter groups, neighbours would
    be alike, and the interval too narrow.
    """
    if not stretches:
        return []
    seconds = stretches[-1].ended_s - stretches[0].began_s
    least_s = max(seconds / _GROUPS, _REQUESTS_PER_GROUP * (request_s or 0.0))
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
