"""Choices that no other choice beats in both latency and throughput. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """One number of draft tokens at one load."""

    concurrency: int
    tokens: int
    tpot_s: float
    """Seconds a token, lower is better."""
    tokens_per_s: float
    """Of all requests together, higher is better."""


def front(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices that are best for some weight of latency against throughput, from the lowest latency on."""
    ordered = sorted(choices, key=lambda each: (each.tpot_s, -each.tokens_per_s, each.tokens))
    kept: list[Choice] = []
    for each in ordered:
        if not kept or each.tokens_per_s > kept[-1].tokens_per_s:
            kept.append(each)
    return tuple(kept)


def ends(choices: Iterable[Choice]) -> tuple[Choice, Choice] | None:
    """The choice of lowest latency, and that of highest throughput; None without one."""
    found = front(choices)
    return (found[0], found[-1]) if found else None
