"""Which share of requests keeps the profile's limits of time. Pure."""

from __future__ import annotations

from collections.abc import Collection

from specserve.profile.schema import Expectation


def share_within(
    limits: Expectation | None, *, tpots_s: Collection[float], ttfts_s: Collection[float]
) -> float | None:
    """Share of requests that keep `max_tpot_p99_ms` and `max_ttft_p99_ms`; None without such limits.

    The two are taken as independent: times per token are predicted request by request, first tokens are not.
    """
    if limits is None:
        return None
    shares = [
        sum(time_s * 1000 <= limit for time_s in times_s) / len(times_s)
        for limit, times_s in ((limits.max_tpot_p99_ms, tpots_s), (limits.max_ttft_p99_ms, ttfts_s))
        if limit is not None and times_s
    ]
    if not shares:
        return None
    return shares[0] if len(shares) == 1 else shares[0] * shares[1]
