"""What speculation would give on accelerators that are not here, for several loads. Starts and measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.errors import UsageError
from specserve.hardware.accelerators import Machine, entries
from specserve.measure.bench.result import Interval
from specserve.measure.tune import roofline, schedule
from specserve.measure.tune.roofline import WITHOUT_MODEL, Estimated, Pair, Rates
from specserve.measure.tune.schedule import Schedule, build
from specserve.measure.tune.walk import geometric
from specserve.memory.estimate import Bounds, MemoryEstimate
from specserve.memory.judge import assess
from specserve.memory.reckoning import reckon
from specserve.memory.situation import MemorySituation as Situation

DEFAULT_CONTEXT = 1024
FIT = "Llama-3.1-8B on an H100 (SpecDecode-Bench/simulator): 76 % of bandwidth, 72 % of FLOP/s, 1.2 ms a step"


@dataclass(frozen=True, slots=True)
class Chance:
    """Of each draft token to be accepted, given that the one before was: 0 to 1."""

    value: float
    length: float | None = None
    """The mean acceptance length that it was worked out from, as a server shows it."""
    tokens: int | None = None
    """Draft tokens of that server's steps."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the recommended setting gives at one load."""

    tokens: int
    speedup: Interval
    """Under 1 where a K for all loads costs more here than it brings."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """All loads of one estimate, with what it rests on."""

    machine: Machine
    method: str
    chance: Chance
    """Assumed."""
    context_tokens: float
    most_tokens: int
    loads: tuple[Estimated, ...]
    schedule: Schedule | None
    """Of the loads that may fit; None where speculation gains nothing at any of them."""
    recommended: tuple[Given, ...]
    """By that schedule, load by load, those that do not fit too; empty without one."""
    why_constant: str | None
    """Why K cannot follow the load, as a clause; None where it can."""
    memory: MemoryEstimate
    requests_at_once: Bounds | None
    """Of this context, that the KV cache holds; None without a KV cache."""
    free_tokens: float
    """Tokens of a step from which computing takes longer than reading 16-bit weights."""
    basis: tuple[str, ...]

    def fits(self, concurrency: int) -> bool | None:
        """Whether the KV cache holds so many requests at once; None where it is not sure."""
        if self.requests_at_once is None or concurrency <= self.requests_at_once.low:
            return True
        return False if concurrency > self.requests_at_once.high else None

    @property
    def served(self) -> tuple[Estimated, ...]:
        """The loads that may fit; all of them where none does."""
        return tuple(load for load in self.loads if self.fits(load.concurrency) is not False) or self.loads

    @property
    def mean_gain(self) -> float | None:
        """The geometric mean of what the recommended setting gives over these; None where none is recommended."""
        given = zip(self.loads, self.recommended, strict=False)
        gains = [each.speedup.value for load, each in given if load in self.served]
        return math.exp(math.fsum(map(math.log, gains)) / len(gains)) if gains else None


def estimate(
    s: Situation,
    *,
    chance: Chance,
    concurrency: Sequence[int],
    most_tokens: int,
    context_tokens: float,
    ranks: int,
) -> Estimate:
    """The best K at each load where each draft token is accepted with this chance. `ranks`: accelerators in use.

    Raises UsageError for an accelerator of which no rates are known, FactError where a model's facts do not suffice.
    """
    rates, pair = _rates(s.machine), roofline.pair(s, context_tokens=context_tokens)
    alpha, at_once, why = chance.value, _at_once(s, context_tokens), _why_constant(s)
    loads = tuple(
        roofline.estimate(pair, acceptance=alpha, batch=load, most_tokens=most_tokens, rates=rates)
        for load in sorted(set(concurrency))
    )
    served = [load for load in loads if at_once is None or load.concurrency <= at_once.high]
    gaining = [load.concurrency for load in served or loads if load.tokens]
    schedule = (
        build(
            _table(pair, gaining, acceptance=alpha, most_tokens=most_tokens, rates=rates),
            may_vary=why is None,
        )
        if gaining
        else None
    )
    return Estimate(
        machine=s.machine,
        method=pair.method,
        chance=chance,
        context_tokens=context_tokens,
        most_tokens=most_tokens,
        loads=loads,
        schedule=schedule,
        recommended=_recommended(pair, schedule, loads, acceptance=alpha, rates=rates),
        why_constant=why,
        memory=assess(s),
        requests_at_once=at_once,
        free_tokens=roofline.free_tokens(weight_bytes=2, rates=rates),
        basis=_basis(s, pair, ranks=ranks),
    )


def _rates(machine: Machine) -> Rates:
    known = machine.accelerator
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"bandwidth and FLOP/s of `{known.name}` are not known, so nothing can be estimated",
            hint="`specserve gpus` shows which are; without `--estimate` a tune measures, where one is at hand",
        )
    return Rates(known.bandwidth_bytes_per_s, known.flops)


def _at_once(s: Situation, context_tokens: float) -> Bounds | None:
    """Requests of so many tokens that the KV cache holds, drafts included."""
    r = reckon(s)
    needed = r.demand.blocks_per_request(math.ceil(context_tokens) + r.demand.lookahead_tokens)
    if not needed:
        return None
    low, high = (max(0, r.demand.blocks(kv) - 1) // needed for kv in (r.low, r.high))
    return Bounds(low, high)


def _table(
    pair: Pair, loads: Sequence[int], *, acceptance: float, most_tokens: int, rates: Rates
) -> dict[int, dict[int, float]]:
    """Tokens/s by load and K."""
    return {
        load: {
            tokens: load
            * geometric(acceptance, tokens=tokens)
            / roofline.step_s(pair, batch=load, tokens=tokens, rates=rates)
            for tokens in range(1, most_tokens + 1)
        }
        for load in loads
    }


def _recommended(
    pair: Pair, schedule: Schedule | None, loads: Sequence[Estimated], *, acceptance: float, rates: Rates
) -> tuple[Given, ...]:
    if schedule is None:
        return ()
    found = []
    for load in loads:
        batch, tokens = load.concurrency, schedule.at(load.concurrency)
        gain = roofline.speedup(pair, acceptance=acceptance, batch=batch, tokens=tokens, rates=rates)
        found.append(Given(tokens, gain))
    return tuple(found)


def _why_constant(s: Situation) -> str | None:
    """Why the drafter would follow no schedule on the runner that the launch gets; None where it would."""
    where = schedule.Situation(s.method or "", s.runner, "cuda", s.settings.data_parallel_size)
    return schedule.follows_schedule(where)


def _basis(s: Situation, pair: Pair, *, ranks: int) -> tuple[str, ...]:
    machine, known = s.machine, s.machine.accelerator
    entry = next((each for each in entries() if each.accelerator == known), None)
    gbs, tflops = (known.bandwidth_bytes_per_s or 0) / 1e9, (known.flops or 0) / 1e12
    lines = [
        f"{known.name}: {gbs:,.0f} GB/s, {tflops:,.0f} TFLOPS in 16 bits"
        + (f" ({entry.rates})" if entry is not None and entry.rates else ""),
        f"weights read in each step: target {_gb(pair.target.bytes_read(1))} on each accelerator"
        + (f", draft {_gb(pair.draft.bytes_read(1))}" if pair.draft else ", no draft model"),
        f"what an engine reaches of the peaks is that of one published fit: {FIT}",
        "tokens/s, TPOT and speedup are of decoding alone: prefill is left out, and speculation does not shorten it",
        "the range of a speedup is what other engines and cards reach, no interval of a measurement",
        "the chance is assumed to be the same at every position and in every text; told from one K, lengths at "
        "another were missed by -8 to +17 % (gpt-oss-20b with EAGLE-3)",
    ]
    if pair.method in WITHOUT_MODEL:
        lines.append(
            "a match is assumed at every step, and looking it up costs nothing: an upper end; a text that "
            "does not repeat itself gains less"
        )
    engines = s.settings.data_parallel_size
    if engines > 1:
        lines.append(f"requests and tokens/s are those of one of {engines} data-parallel engines")
    if machine.count * machine.nodes > ranks:
        lines.append(
            f"the profile's parallel sizes use {ranks} of {machine.count * machine.nodes} accelerators"
        )
    return tuple(lines)


def _gb(value: float) -> str:
    return f"{value / 1e9:,.2f} GB"
