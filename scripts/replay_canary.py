"""Replay the counters of simulated pairs of servers through `watch --against`: how often is its verdict false?

    python scripts/replay_canary.py [--pairs 1000] [--only equal] [--seed 1]

Each pair serves one request per second for an hour, and the comparison looks every 15 s, 240 times. No server runs: the
counters are those of a model of traffic. A request accepts each next draft token (K = 4) with a probability of its own
(mean 0.78, standard deviation 0.12: acceptance rates of 0.58 on average, standard deviation 0.18), which makes its
tokens correlated. Its output is log-normal (median 120 tokens, standard deviation of the logarithm 0.8). Its time per
token follows from its accepted tokens, the load of the minute and noise. 0.2 % of the requests fail. The exit code is 1
if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specserve.measure.watch.compare import CanaryComparison, CanaryReport, CanaryState, FigureVerdict
from specserve.measure.watch.figures import Reading
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram
from specserve.metrics.prometheus import EngineMetrics, Metrics

LOOKS, LOOK_S = 240, 15.0
HOUR_S = LOOKS * LOOK_S
K = 4
STEP_S = 0.045
FALSE_VERDICTS, REQUESTS = 0.01, 300
ENGINE = EngineName("replayed", "0")
Rng = np.random.Generator
Curve = Callable[[np.ndarray], np.ndarray]


def flat(at_s: np.ndarray) -> np.ndarray:
    """1 at any time."""
    return np.ones_like(at_s)


def bursts(at_s: np.ndarray) -> np.ndarray:
    """Twenty seconds of traffic every two minutes."""
    return np.where(at_s % 120 < 20, 1.0, 0.05)


def ramp(at_s: np.ndarray) -> np.ndarray:
    """From 5 % to all of it within the hour."""
    return 0.05 + 0.95 * at_s / HOUR_S


def fall(at_s: np.ndarray) -> np.ndarray:
    """From 1 to 0.6 within the hour."""
    return 1.0 - 0.4 * at_s / HOUR_S


@dataclass(frozen=True)
class Traffic:
    """What one server gets and does."""

    per_s: float = 0.5
    """Requests per second."""
    token: float = 0.78
    """Mean probability that the next draft token is accepted."""
    failing: float = 0.002
    slower: float = 1.0
    own_load: float = 0.0
    """Standard deviation of the logarithm of a load that only this server has."""
    own_for_s: float = 60.0
    """How long such a load lasts."""
    when: Curve = flat
    """Share of `per_s` that comes at each time."""
    drift: Curve = flat
    """Factor of `token` at each time."""


@dataclass(frozen=True)
class Pair:
    """Two servers, and what is true of them."""

    about: str
    other: Traffic
    canary: Traffic
    pairs: float = 0.15
    """Share of `--pairs` that is replayed."""
    worse: bool = False
    better: bool = False
    is_limit: bool = False
    """Whether it shows what the comparison cannot know; its verdicts are no target."""


LITTLE = Traffic(per_s=0.1)
PAIRS: Mapping[str, Pair] = {
    "equal": Pair("equal", Traffic(), Traffic(), pairs=1.0),
    "split": Pair("equal, the canary gets 10 % of the traffic", Traffic(per_s=0.9), LITTLE, pairs=1.0),
    "half": Pair("half the acceptance", Traffic(), Traffic(token=0.523), pairs=1.0, worse=True),
    "half-split": Pair(
        "half the acceptance, the canary gets 10 %",
        Traffic(per_s=0.9),
        Traffic(per_s=0.1, token=0.523),
        worse=True,
    ),
    "bursts": Pair(
        "equal, traffic in bursts", Traffic(per_s=2.5, when=bursts), Traffic(per_s=2.5, when=bursts)
    ),
    "drift": Pair("equal, acceptance falls for both", Traffic(drift=fall), Traffic(drift=fall)),
    "ramp": Pair(
        "equal, acceptance falls for both while the canary gets more of the traffic",
        Traffic(drift=fall),
        Traffic(drift=fall, when=ramp),
    ),
    "long": Pair("equal, requests take 40 s on average", Traffic(slower=16), Traffic(slower=16)),
    "load": Pair(
        "equal, the time per token of each varies by 10 % for 1 minute at a time",
        Traffic(own_load=0.1),
        Traffic(own_load=0.1),
        is_limit=True,
    ),
    "long-load": Pair(
        "the same for 5 minutes at a time",
        Traffic(own_load=0.1, own_for_s=300),
        Traffic(own_load=0.1, own_for_s=300),
        is_limit=True,
    ),
    "few": Pair("equal, the canary gets 1 request per minute", Traffic(per_s=0.9), Traffic(per_s=1 / 60)),
    "slower": Pair("TPOT 15 % higher, acceptance equal", Traffic(), Traffic(slower=1.15), worse=True),
    "failing": Pair("5 % of the requests fail", Traffic(), Traffic(failing=0.05), worse=True),
    "better": Pair("acceptance 8 points higher", Traffic(token=0.74), Traffic(token=0.78), better=True),
}


@dataclass
class Outcome:
    """What the replays of one pair came to."""

    pairs: int = 0
    false: int = 0
    false_by_figure: dict[str, int] = field(default_factory=lambda: {"acceptance": 0, "tpot": 0, "errors": 0})
    states: dict[CanaryState, int] = field(default_factory=lambda: dict.fromkeys(CanaryState, 0))
    decided_at: list[tuple[int, int, float]] = field(default_factory=list)
    """Requests of the canary and of both, and minutes, until the first verdict other than UNDECIDED."""


def server(rng: Rng, traffic: Traffic, load: np.ndarray) -> list[Reading]:
    """The readings of one server over the hour. `load`: factor of the step time in each minute, the same for both."""
    begins = np.sort(rng.uniform(0, HOUR_S, rng.poisson(traffic.per_s * HOUR_S)))
    begins = begins[rng.uniform(size=begins.size) < traffic.when(begins)]
    count = begins.size
    mean = np.clip(traffic.token * traffic.drift(begins), 0.05, 0.95)
    weight = np.maximum(mean * (1 - mean) / 0.12**2 - 1, 1.0)
    token = rng.beta(mean * weight, (1 - mean) * weight)
    tokens = np.clip(rng.lognormal(np.log(120), 0.8, count), 2, 1000)
    reached = token[:, None] ** np.arange(1, K + 1)
    steps = np.maximum(np.round(tokens / (1 + reached.sum(axis=1))), 1).astype(int)
    shares = np.column_stack([1 - reached[:, :1], reached[:, :-1] - reached[:, 1:], reached[:, -1:]])
    accepted = rng.multinomial(steps, shares) @ np.arange(K + 1)
    noise = rng.lognormal(0, 0.15, count) * load[np.minimum(begins / 60, load.size - 1).astype(int)]
    own = np.exp(traffic.own_load * rng.standard_normal(int(HOUR_S / traffic.own_for_s)))
    noise *= own[np.minimum(begins / traffic.own_for_s, own.size - 1).astype(int)]
    tpot_s = traffic.slower * STEP_S * noise * steps / (steps + accepted)
    lasts_s = 0.1 + tpot_s * (steps + accepted)
    failed = rng.uniform(size=count) < traffic.failing
    return list(readings(begins, lasts_s, steps, accepted, tpot_s, failed))


def readings(
    begins: np.ndarray,
    lasts_s: np.ndarray,
    steps: np.ndarray,
    accepted: np.ndarray,
    tpot_s: np.ndarray,
    failed: np.ndarray,
) -> Iterator[Reading]:
    """What /metrics would say at each look, the first one at the begin."""
    first = (begins // LOOK_S).astype(int)
    last = np.minimum(((begins + lasts_s) // LOOK_S).astype(int), LOOKS)
    drafts, taken = np.zeros(LOOKS + 1), np.zeros(LOOKS + 1)
    before = np.zeros(begins.size)
    for span in range(int((last - first).max(initial=0)) + 1):  # a request counts while it runs
        done = np.clip(((first + span + 1) * LOOK_S - begins) / lasts_s, 0, 1)
        looks = np.minimum(first + span, LOOKS)
        drafts += np.bincount(looks, (done - before) * steps, LOOKS + 1)
        taken += np.bincount(looks, (done - before) * accepted, LOOKS + 1)
        before = done
    ends = {
        "stop": np.bincount(last, ~failed, LOOKS + 1),
        "error": np.bincount(last, failed, LOOKS + 1),
        "tpot": np.bincount(last, tpot_s, LOOKS + 1),
        "e2e": np.bincount(last, lasts_s, LOOKS + 1),
    }
    sums = {name: np.concatenate([[0.0], np.cumsum(values[:-1])]) for name, values in ends.items()}
    drafts, taken = (
        np.floor(np.concatenate([[0.0], np.cumsum(part[:-1])]) + 1e-6) for part in (drafts, taken)
    )
    edges = np.arange(LOOKS + 1) * LOOK_S
    running = np.searchsorted(np.sort(begins), edges) - np.searchsorted(np.sort(begins + lasts_s), edges)
    for look in range(LOOKS + 1):
        finished = int(sums["stop"][look] + sums["error"][look])
        counted = Counters(
            acceptance=Acceptance(int(drafts[look]), K * int(drafts[look]), int(taken[look]), (0,) * K),
            finished={"stop": int(sums["stop"][look]), "error": int(sums["error"][look])},
            tpot_s=Histogram((np.inf,), (finished,), float(sums["tpot"][look])),
            e2e_s=Histogram((np.inf,), (finished,), float(sums["e2e"][look])),
        )
        engine = EngineMetrics(counted, running_requests=int(running[look]), speculates=True)
        yield Reading(look * LOOK_S, Metrics({ENGINE: engine}))


def reports(rng: Rng, pair: Pair) -> Iterator[CanaryReport]:
    """One hour of looks, also after a verdict."""
    load = np.exp(0.15 * rng.standard_normal(int(HOUR_S / 60)))
    other, canary = (iter(server(rng, traffic, load)) for traffic in (pair.other, pair.canary))
    comparison = CanaryComparison(lambda: next(canary), lambda: next(other))
    for _ in range(LOOKS + 1):
        yield comparison.look()


def replay(pair: Pair, *, pairs: int, seed: int) -> Outcome:
    """All replays of one kind of pair."""
    found = Outcome(pairs=pairs)
    for number in range(pairs):
        rng = np.random.default_rng([seed, number])
        false: set[str] = set()
        first: CanaryReport | None = None
        for report in reports(rng, pair):
            for figure in report.figures:
                is_worse, is_better = (
                    figure.verdict is verdict for verdict in (FigureVerdict.WORSE, FigureVerdict.BETTER)
                )
                if (is_worse and not pair.worse) or (is_better and not pair.better):
                    false.add(figure.name)
            if first is None and report.state is not CanaryState.UNDECIDED:
                first = report
            if first is not None and (pair.worse or pair.better):
                break
        found.false += bool(false)
        for name in false:
            found.false_by_figure[name] += 1
        found.states[first.state if first is not None else CanaryState.UNDECIDED] += 1
        if first is not None:
            requests = first.canary.requests
            found.decided_at.append((requests, requests + first.other.requests, first.seconds / 60))
    return found


def missed(pair: Pair, found: Outcome) -> list[str]:
    """The targets that this pair misses."""
    bad = []
    allowed = FALSE_VERDICTS * found.pairs
    if found.pairs < 1000:  # few replays exceed the share by chance
        allowed += 2 * allowed**0.5
    if not pair.is_limit and found.false > allowed:
        bad.append(f"{found.false} of {found.pairs} false verdicts: {pair.about}")
    if pair.worse and found.states[CanaryState.ROLL_BACK] < 0.99 * found.pairs:
        bad.append(f"not found in {found.pairs - found.states[CanaryState.ROLL_BACK]}: {pair.about}")
    if pair is PAIRS["half"] and np.quantile([both for _, both, _ in found.decided_at], 0.99) > REQUESTS:
        bad.append(f"more than {REQUESTS} requests of both in 1 % of the replays: {pair.about}")
    return bad


def main() -> int:
    """0: every target is reached."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--only", choices=list(PAIRS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(
        "| pair | replays | false verdicts | PROMOTE, ROLL BACK, UNDECIDED | canary's requests / all / minutes |"
    )
    print("|---|---|---|---|---|")
    bad: list[str] = []
    began_s = time.process_time()
    for name in args.only or PAIRS:
        pair = PAIRS[name]
        found = replay(pair, pairs=max(1, round(args.pairs * pair.pairs)), seed=args.seed)
        bad += missed(pair, found)
        by_figure = ", ".join(f"{each} {number}" for each, number in found.false_by_figure.items() if number)
        states = ", ".join(str(found.states[state]) for state in CanaryState)
        until = [f"{np.median(part):.0f}, {max(part):.0f}" for part in zip(*found.decided_at, strict=True)]
        print(
            f"| {pair.about} | {found.pairs} | {found.false}{f' ({by_figure})' if by_figure else ''} | {states} | "
            f"{' / '.join(until) or '-'} |"
        )
    print(f"{time.process_time() - began_s:.0f} s of CPU time")
    print("\n".join(bad) or "all targets reached")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
