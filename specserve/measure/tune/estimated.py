"""What speculation would give on accelerators that are not here, from models' facts. Starts and measures nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from specserve.errors import FactError, HubUnreachable, UsageError
from specserve.hardware.accelerators import CPU, Machine, entries
from specserve.hardware.accelerators import assume as machine_of
from specserve.measure.bench.result import Interval
from specserve.measure.tune import roofline
from specserve.measure.tune.plan import TuneRequest
from specserve.measure.tune.roofline import LONGEST, WITHOUT_MODEL, Estimated, Pair, Rates
from specserve.measure.tune.schedule import Schedule, Situation, build, follows_schedule
from specserve.measure.tune.walk import geometric, geometric_rate
from specserve.memory.constants import Bounds
from specserve.memory.estimate import MemoryEstimate, assess
from specserve.memory.reckoning import reckon
from specserve.memory.situation import MemorySituation
from specserve.profile.schema import Profile, world_size

DEFAULT_CONTEXT = 1024
DEFAULT_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_TOKENS = 8
FIT = "Llama-3.1-8B on an H100 (SpecDecode-Bench/simulator): 76 % of bandwidth, 72 % of FLOP/s, 1.2 ms a step"
_FORMS = (
    "`--acceptance 0.7` is the chance of each draft token, given the one before; `3.6@4` is a mean "
    "acceptance length at K = 4, as `specserve watch` and `specserve ask` show it of a running server"
)


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
    """Under 1 if a K for all loads costs more here than it brings."""


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
    """Of the loads that may fit; None if speculation gains nothing at any of them."""
    recommended: tuple[Given, ...]
    """By that schedule, load by load, those that do not fit too; empty without one."""
    why_constant: str | None
    """Why K cannot follow the load, as a clause; None if it can."""
    memory: MemoryEstimate
    requests_at_once: Bounds | None
    """Of this context, that the KV cache holds; None without a KV cache."""
    free_tokens: float
    """Tokens of a step from which computing takes longer than reading 16-bit weights."""
    basis: tuple[str, ...]

    def fits(self, concurrency: int) -> bool | None:
        """Whether the KV cache holds so many requests at once; None if it is not sure."""
        if self.requests_at_once is None or concurrency <= self.requests_at_once.low:
            return True
        return False if concurrency > self.requests_at_once.high else None

    @property
    def served(self) -> tuple[Estimated, ...]:
        """The loads that may fit; all of them if none does."""
        return tuple(load for load in self.loads if self.fits(load.concurrency) is not False) or self.loads

    @property
    def mean_gain(self) -> float | None:
        """The geometric mean of what the recommended setting gives over these; None if none is recommended."""
        given = zip(self.loads, self.recommended, strict=False)
        gains = [each.speedup.value for load, each in given if load in self.served]
        return geometric_mean(gains) if gains else None


def estimate(
    s: MemorySituation,
    *,
    chance: Chance,
    concurrency: Sequence[int],
    most_tokens: int,
    context_tokens: float,
    ranks: int,
) -> Estimate:
    """The best K at each load if each draft token is accepted with this chance. `ranks`: accelerators in use.

    Raises UsageError for an accelerator of which no rates are known, FactError if a model's facts do not suffice.
    """
    rates, pair = rates_of(s.machine), roofline.pair(s, context_tokens=context_tokens)
    alpha, at_once = chance.value, _at_once(s, context_tokens)
    there = Situation(s.speculative.method or "", s.runner, "cuda", s.settings.data_parallel_size)
    why = follows_schedule(there)
    loads = tuple(
        roofline.estimate(pair, acceptance=alpha, batch=load, most_tokens=most_tokens, rates=rates)
        for load in sorted(set(concurrency))
    )
    served = [load for load in loads if at_once is None or load.concurrency <= at_once.high]
    table = {
        load.concurrency: {
            tokens: geometric(alpha, tokens=tokens)
            / roofline.step_s(pair, batch=load.concurrency, tokens=tokens, rates=rates)
            for tokens in range(1, most_tokens + 1)
        }
        for load in served or loads
        if load.tokens
    }
    schedule = build(table, may_vary=why is None) if table else None
    chosen = [(load.concurrency, schedule.at(load.concurrency)) for load in loads] if schedule else []
    return Estimate(
        machine=s.machine,
        method=pair.method,
        chance=chance,
        context_tokens=context_tokens,
        most_tokens=most_tokens,
        loads=loads,
        schedule=schedule,
        recommended=tuple(
            Given(k, roofline.speedup(pair, acceptance=alpha, batch=load, tokens=k, rates=rates))
            for load, k in chosen
        ),
        why_constant=why,
        memory=assess(s),
        requests_at_once=at_once,
        free_tokens=rates.free_tokens,
        basis=_basis(s, pair, ranks=ranks),
    )


def rates_of(machine: Machine) -> Rates:
    """What the machine's accelerators do. Raises UsageError if nobody knows."""
    known = machine.accelerator
    if known.bandwidth_bytes_per_s is None or known.flops is None:
        raise UsageError(
            f"nothing can be estimated: the bandwidth and FLOP/s of `{known.name}` are not known",
            hint=(
                "`specserve gpus` shows which are known; if you have this accelerator, leave `--estimate` out "
                "and measure"
            ),
        )
    return Rates(known.bandwidth_bytes_per_s, known.flops)


def _at_once(s: MemorySituation, context_tokens: float) -> Bounds | None:
    """Requests of so many tokens that the KV cache holds, drafts included."""
    r = reckon(s)
    needed = r.demand.blocks_per_request(math.ceil(context_tokens) + r.demand.lookahead_tokens)
    if not needed:
        return None
    low, high = (max(0, r.demand.blocks(kv) - 1) // needed for kv in (r.low, r.high))
    return Bounds(low, high)


def _basis(s: MemorySituation, pair: Pair, *, ranks: int) -> tuple[str, ...]:
    machine, known = s.machine, s.machine.accelerator
    entry = next((each for each in entries() if each.accelerator == known), None)
    gbs, tflops = (known.bandwidth_bytes_per_s or 0) / 1e9, (known.flops or 0) / 1e12
    lines = [
        f"{known.name}: {gbs:,.0f} GB/s, {tflops:,.0f} TFLOPS in 16 bits"
        + (f" ({entry.rates})" if entry is not None and entry.rates else ""),
        f"weights read in each step: target {_gb(pair.target.bytes_read(1))} on each accelerator"
        + (f", draft {_gb(pair.draft.bytes_read(1))}" if pair.draft else ", no draft model"),
        f"the share of the peaks that an engine reaches is taken from one published fit: {FIT}",
        "tokens/s, TPOT and speedup are for decoding only: prefill is left out, and speculation does not shorten it",
        "the range of a speedup covers what other engines and cards reach; it is no confidence interval",
        "the chance is assumed to be the same at every position and in every text; predicted from one K, "
        "lengths at another were missed by -8 to +17 % (gpt-oss-20b with EAGLE-3)",
    ]
    if pair.method in WITHOUT_MODEL:
        lines.append(
            "a match is assumed at every step, and looking it up at no cost, so this is an upper limit: "
            "a text that does not repeat itself gains less"
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


def estimate_request(asked: TuneRequest, *, accelerator: str, acceptance: str | None) -> tuple[str, Estimate]:
    """The profile's name and the estimate. Raises UsageError, and FactError if a model cannot be read."""
    from specserve.checks.gather import CheckOptions, gather
    from specserve.memory.situation import situation
    from specserve.profile.load import load_profile
    from specserve.vllm.versions import known_versions

    chance = chance_of(acceptance)
    profile = load_profile(asked.profile, settings=asked.settings)
    machine = _machine(profile, accelerator)
    known = gather(profile, wanted=CheckOptions(machine=machine, here=False, tell=lambda _: None))
    for unread in known.unread:
        if not unread.path.startswith("alternatives."):
            if isinstance(unread.error, HubUnreachable):
                unread.error.hint = (
                    "check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 for what is here"
                )
            raise unread.error
    context = known.context
    arm = next((arm for arm in context.arms if arm.path == "speculation"), None)
    if arm is None:
        raise UsageError("the profile does not speculate", hint="add a `speculation` section to it")
    if context.target is None:
        raise FactError(f"`{profile.target.model}` could not be read")
    s = situation(
        profile,
        target=context.target,
        machine=machine,
        version=(context.versions or known_versions())[-1],
        speculation=arm.block,
        draft=arm.draft,
    )
    return profile.name, estimate(
        s,
        chance=chance,
        concurrency=_loads(asked, profile, most=s.settings.max_num_seqs),
        most_tokens=asked.most_tokens or DEFAULT_TOKENS,
        context_tokens=_context(profile, s.settings.max_model_len),
        ranks=world_size(profile),
    )


def chance_of(text: str | None) -> Chance:
    """`0.7`: of each draft token, given the one before; `3.6@4`: the one that gives 3.6 tokens a step at K = 4.

    Raises UsageError for other forms, and for what cannot be.
    """
    if text is None:
        raise UsageError("`--estimate` needs the probability that a draft token is accepted", hint=_FORMS)
    form = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)(?:@([0-9]{1,3}))?", text)
    value = float(form[1]) if form else math.nan
    if form is None or form[2] is None:
        if 0 <= value <= 1:
            return Chance(value)
        raise UsageError(f"`--acceptance {text}` is not a probability from 0 to 1", hint=_FORMS)
    tokens = int(form[2])
    if not 1 <= tokens <= LONGEST:
        raise UsageError(f"`--acceptance {text}`: K must be a whole number from 1 to {LONGEST}", hint=_FORMS)
    if 1 <= value <= tokens + 1:
        return Chance(geometric_rate(value, tokens=tokens), value, tokens)
    hint = _FORMS
    if value < 1:  # the other figure that `watch` shows
        length = 1 + value * tokens
        hint = f"a rate of {value:g} is a length of 1 + {value:g} x K: `--acceptance {length:g}@{tokens}`"
    raise UsageError(
        f"`--acceptance {text}` is impossible: a step with K = {tokens} produces 1 to {tokens + 1} tokens",
        hint=hint,
    )


def _loads(asked: TuneRequest, profile: Profile, *, most: int) -> Sequence[int]:
    """As asked, else the defaults that are served. Raises UsageError for more than run at once."""
    from specserve.measure.values import whole_numbers

    loads = whole_numbers(asked.concurrency, "--concurrency", least=1, most=65536)
    if any(load > most for load in loads):
        assumed = "" if "max_num_seqs" in profile.engine else " (assumed)"
        raise UsageError(
            f"max_num_seqs is {most}{assumed}: at a higher concurrency, requests would wait",
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    return loads or [load for load in DEFAULT_LOADS if load <= most]


def _machine(profile: Profile, accelerator: str) -> Machine:
    """What was named, as many as the profile's parallel sizes take if no count was given."""
    machine = machine_of(accelerator)
    if machine.accelerator.name == CPU:
        raise UsageError(
            "nothing can be estimated for `cpu`: its bandwidth and FLOP/s are not in the catalogue",
            hint="run `specserve tune` without `--estimate` to measure on this machine",
        )
    ranks, there = world_size(profile), machine.count * machine.nodes
    if accelerator.strip()[:1].isdigit() and there < ranks:
        raise UsageError(
            (
                f"`--estimate {accelerator}` gives {there}, but the profile's parallel sizes need {ranks} "
                "accelerators"
            ),
            hint=(
                f"use `--estimate {ranks}x{machine.accelerator.name}`, or smaller sizes, such as `--set "
                "target.tensor_parallel_size=1`"
            ),
        )
    return replace(machine, count=ranks) if there < ranks else machine


def _context(profile: Profile, limit: int) -> float:
    """Tokens of a request on average: its prompt and half of its output, as promised, else a thousand."""
    for promise in profile.expect:
        prompt, output = promise.prompt_tokens or {}, promise.output_tokens or {}
        if "p50" in prompt and "p50" in output:
            return min(limit, prompt["p50"] + output["p50"] / 2)
    return min(limit, DEFAULT_CONTEXT)
