"""Tokens that the small demo pair once wrote, and servers simulated on them. Starts nothing."""

from __future__ import annotations

import gzip
import json
import math
import random
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from specserve.measure.verify.result import Sampled, Sampling
from specserve.measure.verify.sampled import Collector, Tally, known, tally, total
from specserve.measure.verify.session import Position

FILE = Path(__file__).parents[2] / "data" / "verify_logprobs.json.gz"
BEYOND = 99
"""Stands for any token beyond the likeliest twenty."""
_BEYOND_SHARE = 0.65
"""Of the bound on the tokens beyond: what was seen on the recorded tokens (888 of at most 1,328)."""

Draw = tuple[list[float], Sequence[Tally]]
"""Running weights of each token that may come, and what it adds to the tally."""


@lru_cache
def answers() -> tuple[tuple[Position, ...], ...]:
    """30 answers, 3,840 tokens; a token's id is its rank."""
    recorded = json.loads(gzip.decompress(FILE.read_bytes()))["answers"]
    return tuple(
        tuple(
            Position(token if token >= 0 else BEYOND, own / 1000, tuple(enumerate(x / 1000 for x in top)))
            for token, own, top in zip(one["token"], one["own"], one["top"], strict=True)
        )
        for one in recorded
    )


@lru_cache
def outcomes(position: Position, sampling: Sampling) -> tuple[Tally, ...]:
    """What each token that may stand there adds to the tally."""
    tokens = [Position(token, logprob, position.top) for token, logprob in position.top]
    tokens.append(Position(BEYOND, position.top[-1][1] - 1, position.top))
    return tuple(tally([token], sampling) for token in tokens)


def draws(positions: Sequence[Position], sampling: Sampling, *, drawn_at: float) -> list[Draw]:
    """Each position as a server of another temperature draws it, judged by the asked one."""
    found: list[Draw] = []
    for position in positions:
        here = known(position, Sampling(drawn_at))
        assert here is not None and here.beyond is not None
        weights = [math.exp(logprob / drawn_at) for _, logprob in position.top]
        share = min(here.beyond[0], 0.9)
        weights.append(_BEYOND_SHARE * share / (1 - share) * math.fsum(weights))
        found.append((list(accumulate(weights)), outcomes(position, sampling)))
    return found


def request(places: Sequence[Draw], rng: random.Random) -> Tally:
    """One answer with tokens drawn anew."""
    return total([of[bisect(running, rng.random() * running[-1])] for running, of in places])


@lru_cache
def pool(sampling: Sampling, *, factor: float) -> tuple[Tally, ...]:
    """1,200 answers of a server whose temperature is off by a factor."""
    rng = random.Random(20261121)
    places = [draws(one, sampling, drawn_at=sampling.temperature * factor) for one in answers()[::2]]
    return tuple(request(rng.choice(places), rng) for _ in range(1200))


def run(answers_: Sequence[Tally], sampling: Sampling, *, most_tokens: int, seed: int) -> Sampled:
    """One verification of a simulated server, request by request."""
    rng = random.Random(seed)
    collector = Collector(sampling, most_tokens=most_tokens)
    while not collector.is_decided:
        collector.add(rng.choice(answers_))
    return collector.judged()
