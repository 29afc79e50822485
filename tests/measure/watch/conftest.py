"""Stretches of time made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.measure.watch.figures import Stretch
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram

ENGINE = EngineName("demo", "0")
MakeStretch = Callable[..., Stretch]


def made(
    began_s: float = 0.0,
    seconds: float = 5.0,
    *,
    drafts: int = 100,
    shares: tuple[float, ...] = (0.8, 0.6, 0.5, 0.4),
    finished: int = 5,
    plain_tokens: int = 0,
    running: float = 2.0,
    speculates: bool = True,
    name: EngineName = ENGINE,
    draft_tokens: int | None = None,
    ttft_s: Histogram | None = None,
    preemptions: int = 0,
    kv_cache_usage: float | None = 0.2,
) -> Stretch:
    """A stretch of one engine in which so many drafts were accepted by these shares per position."""
    accepted = tuple(round(drafts * share) for share in shares)
    counted = Acceptance(
        drafts, len(shares) * drafts if draft_tokens is None else draft_tokens, sum(accepted), accepted
    )
    counters = Counters(
        acceptance=counted,
        finished={"stop": finished},
        generation_tokens=drafts + sum(accepted) + plain_tokens,
        preemptions=preemptions,
        ttft_s=ttft_s or Histogram(),
    )
    return Stretch(
        began_s=began_s,
        ended_s=began_s + seconds,
        engines={name: counters},
        speculates=speculates,
        running_request_s=running * seconds,
        most_running=round(running),
        most_kv_cache_usage=kv_cache_usage,
    )


def series(count: int, *, seconds: float = 5.0, began_s: float = 0.0, **what: object) -> tuple[Stretch, ...]:
    """Such stretches one after another."""
    return tuple(
        made(began_s + index * seconds, seconds, **what)  # type: ignore[arg-type]
        for index in range(count)
    )


@pytest.fixture
def stretch() -> MakeStretch:
    return made


@pytest.fixture
def stretches() -> Callable[..., tuple[Stretch, ...]]:
    return series
