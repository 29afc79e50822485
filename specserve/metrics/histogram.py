"""A Prometheus histogram and its quantiles, as PromQL reckons them. Pure; knows no metric by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket: `counts[i]` lie above `bounds[i - 1]` and at or below `bounds[i]`.

    The last bound is infinite. Unlike the samples of the text, the counts are not cumulative.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum: float = 0.0
    """Of the observed values."""

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean of the observed values, which buckets do not blur; None without one."""
        return self.sum / self.count if self.count else None

    def __add__(self, other: Histogram) -> Histogram:
        """Two engines, or two stretches of time, together. Of unlike buckets nothing can be said: it is empty."""
        if not self.bounds or not other.bounds:
            return self if self.bounds else other
        if self.bounds != other.bounds:
            return Histogram()
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """The value below which that share lies: PromQL's `histogram_quantile`; None without an observation.

        Inside a bucket the values are taken as evenly spread; of the last one only its lower bound is known.
        """
        if not self.count:
            return None
        rank = share * self.count
        index, before = self._find(rank)
        low, high = self._edges(index)
        if not math.isfinite(high):
            return low
        if index == 0 and high <= 0:
            return high
        return low + (high - low) * (rank - before) / self.counts[index]

    def around(self, rank: int) -> tuple[float, float]:
        """The edges of the bucket that holds the observation of that rank, the smallest one being 1."""
        index, _ = self._find(max(rank, 1))
        return self._edges(index)

    def _find(self, rank: float) -> tuple[int, int]:
        """The bucket of a rank, and how many observations lie before it."""
        for index, upto in enumerate(accumulate(self.counts)):
            if upto >= rank and self.counts[index]:
                return index, upto - self.counts[index]
        last = max(index for index, count in enumerate(self.counts) if count)
        return last, self.count - self.counts[last]

    def _edges(self, index: int) -> tuple[float, float]:
        low = self.bounds[index - 1] if index else 0.0
        return low, self.bounds[index]


def since(before: Histogram, *, now: Histogram) -> Histogram | None:
    """What was observed between two readings; None where that cannot be: a restart, or other buckets."""
    if not before.bounds:
        return now
    if before.bounds != now.bounds:
        return None
    counts = tuple(after - earlier for earlier, after in zip(before.counts, now.counts, strict=True))
    return Histogram(now.bounds, counts, now.sum - before.sum) if min(counts) >= 0 else None
