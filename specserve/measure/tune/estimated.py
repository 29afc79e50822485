"""What speculation would give on accelerators that are not here, for several loads. Starts and measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specserve.errors import UsageError
from specserve.facts.accelerators import Machine, entries
from specserve.measure.tune import ladder, roofline, work
from specserve.measure.tune.roofline import Estimated, Pair, Rates
from specserve.measure.tune.schedule import Schedule, build
from specserve.measure.tune.walk import geometric
from specserve.plan.memory.situation import Situation

DEFAULT_CONTEXT = 1024
FIT = "Llama-3.1-8B on an H100 (SpecDecode-Bench/simulator): 76 % of bandwidth, 72 % of FLOP/s, 1.2 ms a step"


@dataclass(frozen=True, slots=True)
class Estimate:
    """All loads of one estimate, with what it rests on."""

    machine: Machine
    method: str
    acceptance: float
    """Of each draft token, assumed."""
    context_tokens: float
    most_tokens: int
    loads: tuple[Estimated, ...]
    schedule: Schedule | None
    """None where speculation gains nothing at any load."""
    free_tokens: float
    """Tokens of a step from which computing takes longer than reading 16-bit weights."""
    basis: tuple[str, ...]


def estimate(
    s: Situation,
    *,
    acceptance: float,
    concurrency: Sequence[int],
    most_tokens: int,
    context_tokens: float,
) -> Estimate:
    """The best K at each load where each draft token is accepted with this chance.

    Raises UsageError for an accelerator of which no rates are known, FactError where a model's facts do not suffice.
    """
    rates = _rates(s.machine)
    pair = work.pair(s, context_tokens=context_tokens)
    loads = tuple(
        roofline.estimate(pair, acceptance=acceptance, batch=load, most_tokens=most_tokens, rates=rates)
        for load in sorted(set(concurrency))
    )
    return Estimate(
        machine=s.machine,
        method=pair.method,
        acceptance=acceptance,
        context_tokens=context_tokens,
        most_tokens=most_tokens,
        loads=loads,
        schedule=_schedule(
            pair, loads, acceptance=acceptance, most_tokens=most_tokens, rates=rates, may_vary=_may_vary(s)
        ),
        free_tokens=roofline.free_tokens(weight_bytes=2, rates=rates),
        basis=_basis(s.machine, pair),
    )


def _rates(machine: Machine) -> Rates:
    known = machine.accelerator
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"bandwidth and FLOP/s of `{known.name}` are not known, so nothing can be estimated",
            hint="`specserve tune` without `--estimate` measures, where the accelerator is at hand",
        )
    return Rates(known.bandwidth_bytes_per_s, known.flops)


def _schedule(
    pair: Pair,
    loads: Sequence[Estimated],
    *,
    acceptance: float,
    most_tokens: int,
    rates: Rates,
    may_vary: bool,
) -> Schedule | None:
    """By the estimated rates, of the loads where speculation gains."""
    table = {}
    for load in loads:
        if load.tokens:
            table[load.concurrency] = {
                tokens: load.concurrency
                * geometric(acceptance, tokens=tokens)
                / roofline.step_s(pair, batch=load.concurrency, tokens=tokens, rates=rates)
                for tokens in range(1, most_tokens + 1)
            }
    return build(table, may_vary=may_vary) if table else None


def _may_vary(s: Situation) -> bool:
    """Whether the drafter would follow a schedule on the runner that the launch gets."""
    where = ladder.Situation(s.method or "", s.runner, "cuda", s.settings.data_parallel_size)
    return ladder.follows_schedule(where) is None


def _basis(machine: Machine, pair: Pair) -> tuple[str, ...]:
    entry = next((each for each in entries() if each.accelerator == machine.accelerator), None)
    gbs = (machine.accelerator.bandwidth_bytes_per_s or 0) / 1e9
    tflops = (machine.accelerator.flops or 0) / 1e12
    return (
        f"{machine.accelerator.name}: {gbs:,.0f} GB/s, {tflops:,.0f} TFLOPS in 16 bits"
        + (f" ({entry.rates})" if entry is not None and entry.rates else ""),
        f"weights read in each step: target {_gb(pair.target.bytes_read(1))} on each accelerator"
        + (f", draft {_gb(pair.draft.bytes_read(1))}" if pair.draft else ", no draft model"),
        f"what an engine reaches of the peaks is that of one published fit: {FIT}",
        "the range of a speedup is what other engines and cards reach, no interval of a measurement",
        "acceptance is assumed to be the same at every position and in every text",
    )


def _gb(value: float) -> str:
    return f"{value / 1e9:,.2f} GB"
