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

from specserve.measure.verify.judge import Compared, Position, Tally, judge_sampled, tally

FILE = Path(__file__).parents[1] / "data" / "verify_logprobs.json.gz"
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
def outcomes(position: Position, temperature: float) -> tuple[Tally, ...]:
    """What each token that may stand there adds to the tally."""
    tokens = [Position(token, logprob, position.top) for token, logprob in position.top]
    tokens.append(Position(BEYOND, position.top[-1][1] - 1, position.top))
    return tuple(tally([token], temperature) for token in tokens)


def beyond(position: Position, temperature: float) -> float:
    """The most that the tokens beyond the likeliest weigh together; the best one weighs 1.

    A token of probability p weighs p^s, with s = 1/T: for s >= 1 they are at most (sum of p) * most^(s - 1) together.
    """
    seen, exponent, most = (
        math.fsum(math.exp(lp) for _, lp in position.top),
        1 / temperature,
        position.top[-1][1],
    )
    total = min(math.log(max(0.0, 1.0 - seen) + 1e-5), math.log(1 << 18) + most)
    return math.exp(min(total + most * (exponent - 1) - position.top[0][1] * exponent, 50.0))


def draws(positions: Sequence[Position], temperature: float, *, drawn_at: float) -> list[Draw]:
    """Each position as a server of another temperature draws it, judged by the requested one."""
    found: list[Draw] = []
    for position in positions:
        weights = [math.exp((lp - position.top[0][1]) / drawn_at) for _, lp in position.top]
        rest = beyond(position, drawn_at)
        weights.append(_BEYOND_SHARE * min(rest, 9 * math.fsum(weights)))
        found.append((list(accumulate(weights)), outcomes(position, temperature)))
    return found


def request(places: Sequence[Draw], rng: random.Random) -> Tally:
    """One answer with tokens drawn anew."""
    drawn = [of[bisect(sums, rng.random() * sums[-1])] for sums, of in places]
    return Tally(*map(sum, zip(*drawn, strict=True)))


@lru_cache
def pool(temperature: float, *, factor: float, tokens: int = 128) -> tuple[Tally, ...]:
    """1,200 answers of a server whose temperature is off by a factor."""
    rng = random.Random(20261121)
    drawn_at = temperature * factor
    places = [draws(one[:tokens], temperature, drawn_at=drawn_at) for one in answers()[::2]]
    return tuple(request(rng.choice(places), rng) for _ in range(1200))


def run(drawn: Sequence[Tally], temperature: float, *, most_tokens: int, seed: int) -> Compared:
    """One verification of a simulated server."""
    rng = random.Random(seed)
    most = math.ceil(most_tokens * len(drawn) / sum(one.tokens for one in drawn))
    return judge_sampled([rng.choice(drawn) for _ in range(most)], temperature)
