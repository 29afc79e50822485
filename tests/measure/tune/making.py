"""What vLLM would refuse of a schedule by batch size."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from specserve.measure.tune.choose import Range


def problems(found: Sequence[Range], *, loads: Collection[int]) -> list[str]:
    """What vLLM would refuse of it, and loads whose neighbour has another K though there was room between them."""
    told = []
    if not found or found[0][0] != 1:
        told.append("the first range must start at 1")
    for (_, last, tokens), (first, _, after) in pairwise(found):
        if first != last + 1:
            told.append(f"there is a gap or an overlap at {first}")
        if tokens == after:
            told.append(f"two ranges that meet at {first} have the same K")
        room = [load for load in loads if load > last]
        below = [load for load in loads if load <= last]
        if room and below and min(room) - max(below) > 2 and (last in loads or first in loads):
            told.append(f"a bound lies on a load, at {last}")
    if any(tokens < 0 or last < first for first, last, tokens in found):
        told.append("a range is empty, or its K negative")
    return told
