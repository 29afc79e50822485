"""What speculation would give on accelerators that are not here, from bytes and operations. Measures nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import TYPE_CHECKING

from specserve.errors import FactError, HubUnreachable, UsageError
from specserve.hardware.accelerators import CPU, Machine
from specserve.hardware.accelerators import assume as machine_of
from specserve.measure.bench.result import Interval
from specserve.measure.tune.choose import Range, build, ranges, schedule_obstacle, tokens_at
from specserve.measure.tune.plan import TuneRequest, too_many_requests
from specserve.measure.tune.roofline import WITHOUT_MODEL, Roofline, geometric, geometric_rate, roofline_of
from specserve.measure.values import whole_numbers
from specserve.memory.breakdown import break_down
from specserve.memory.constants import Bounds
from specserve.memory.estimate import MemoryEstimate, assess
from specserve.memory.situation import MemorySituation, situation
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile, world_size

if TYPE_CHECKING:
    from specserve.checks.gather import Gathered

LONGEST = 64
"""No more draft tokens are looked at."""
DEFAULT_CONTEXT = 1024
DEFAULT_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_TOKENS = 8
FIT = "Llama-3.1-8B on an H100 (SpecDecode-Bench/simulator): 76 % of bandwidth, 72 % of FLOP/s, 1.2 ms a step"
_FORMS = (
    "`--acceptance 0.7` is the chance of each draft token, given the one before; `3.6@4` is a mean "
    "acceptance length at K = 4, as `specserve watch` and `specserve ask` show it of a running server"
)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the user supplies."""

    acceptance: float
    """The probability that a draft token is accepted, given that the one before was."""
    mean_acceptance_length: float | None = None
    """The length that it was computed from, as a server shows it, and the K of that server."""
    mean_acceptance_length_at: int | None = None
    context_tokens: float = DEFAULT_CONTEXT
    """Of each request, on average."""


@dataclass(frozen=True, slots=True)
class EstimatedMemory:
    """Whether the models fit, and how many requests of the assumed context run at the same time."""

    verdict: str
    reason: str | None
    kv_cache_tokens: Bounds
    requests_at_once: Bounds | None
    """None without a KV cache."""

    def fits(self, concurrency: int) -> bool | None:
        """Whether the KV cache holds that many requests; None if it is not sure."""
        if self.requests_at_once is None or concurrency <= self.requests_at_once.low:
            return True
        return False if concurrency > self.requests_at_once.high else None


@dataclass(frozen=True, slots=True)
class Recommended:
    """What the recommended setting gives at one load."""

    num_speculative_tokens: int
    speedup: Interval
    """Under 1 if a K for all loads costs more here than it brings."""


@dataclass(frozen=True, slots=True)
class EstimatedPoint:
    """One load: the best K if each draft token is accepted with the assumed probability, and what it gives."""

    concurrency: int
    num_speculative_tokens: int
    """0: none is faster than none. The figures of drafts are then those of K = 1."""
    speedup: Interval
    """The range of what engines reach, not a confidence interval."""
    output_tokens_per_s: float
    tpot_ms: float
    step_ms: float
    plain_step_ms: float
    break_even_mean_acceptance_length: float
    assumed_mean_acceptance_length: float
    draft_share_of_step: float
    fits_kv_cache: bool | None = True
    recommended: Recommended | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """All loads of one estimate, with what it rests on; its fields are the keys of its JSON."""

    kind: str
    basis: str
    profile: str
    accelerator: str
    count: int
    nodes: int
    method: str
    assumed: Assumed
    memory: EstimatedMemory
    largest_num_speculative_tokens: int
    points: tuple[EstimatedPoint, ...]
    num_speculative_tokens: int
    """0 if speculation gains nothing at any load."""
    num_speculative_tokens_per_batch_size: tuple[Range, ...] | None
    recommended_mean_speedup: float | None
    """The geometric mean over the loads that may fit."""
    no_schedule_because: str | None
    """Why K cannot follow the load, as a clause; None if it can."""
    memory_bound_up_to_tokens: float
    rests_on: tuple[str, ...]

    @property
    def served(self) -> tuple[EstimatedPoint, ...]:
        """The loads that may fit; all of them if none does."""
        return tuple(point for point in self.points if point.fits_kv_cache is not False) or self.points


def estimate(
    s: MemorySituation,
    *,
    name: str,
    assumed: Assumed,
    concurrency: Sequence[int],
    most_tokens: int,
    ranks: int,
) -> Estimate:
    """The best K at each load, and the setting for all. `ranks`: accelerators in use.

    Raises UsageError for an accelerator of which no rates are known, FactError if a model's facts do not suffice.
    """
    roofline = roofline_of(s, context_tokens=assumed.context_tokens)
    alpha, memory = assumed.acceptance, _memory(s, assumed.context_tokens)
    obstacle = schedule_obstacle(s.speculative.method or "", s.runner, engines=s.settings.data_parallel_size)
    points = [
        replace(estimate_load(roofline, alpha, load, most_tokens), fits_kv_cache=memory.fits(load))
        for load in sorted(set(concurrency))
    ]
    served = [point for point in points if point.fits_kv_cache is not False] or points
    gains = {
        point.concurrency: {
            tokens: roofline.speedup(alpha, point.concurrency, tokens).value
            for tokens in range(1, most_tokens + 1)
        }
        for point in served
        if point.num_speculative_tokens
    }
    by_load = build(gains, may_vary=obstacle is None) if gains else {}
    if by_load:
        for place, point in enumerate(points):
            tokens = tokens_at(by_load, point.concurrency)
            given = Recommended(tokens, roofline.speedup(alpha, point.concurrency, tokens))
            points[place] = replace(point, recommended=given)
    there = {point.concurrency for point in served}
    mean_of = [
        each.recommended.speedup.value for each in points if each.recommended and each.concurrency in there
    ]
    return Estimate(
        "estimate", "estimated", name, s.machine.accelerator.name, s.machine.count, s.machine.nodes, roofline.method,
        assumed, memory, most_tokens, tuple(points),
        num_speculative_tokens=max(by_load.values(), default=0),
        num_speculative_tokens_per_batch_size=found if len(found := ranges(by_load)) > 1 else None,
        recommended_mean_speedup=geometric_mean(mean_of) if mean_of else None,
        no_schedule_because=obstacle,
        memory_bound_up_to_tokens=roofline.free_tokens,
        rests_on=_basis(s, roofline, ranks=ranks),
    )  # fmt: skip


def estimate_load(roofline: Roofline, acceptance: float, batch: int, most_tokens: int) -> EstimatedPoint:
    """The best K of 0 to `most_tokens` at one load."""
    gains = [roofline.speedup(acceptance, batch, tokens) for tokens in range(most_tokens + 1)]
    best = max(range(most_tokens + 1), key=lambda tokens: gains[tokens].value)
    shown, length = best or 1, geometric(acceptance, tokens=best)
    plain_s, taken_s, shown_s = (roofline.step_s(batch, tokens) for tokens in (0, best, shown))
    return EstimatedPoint(
        concurrency=batch,
        num_speculative_tokens=best,
        speedup=gains[shown],
        output_tokens_per_s=batch * length / taken_s,
        tpot_ms=taken_s / length * 1000,
        step_ms=taken_s * 1000,
        plain_step_ms=plain_s * 1000,
        break_even_mean_acceptance_length=shown_s / plain_s,
        assumed_mean_acceptance_length=geometric(acceptance, tokens=shown),
        draft_share_of_step=roofline.draft_s(batch, shown) / shown_s,
    )


def _memory(s: MemorySituation, context_tokens: float) -> EstimatedMemory:
    memory, r = assess(s), break_down(s)
    needed = r.demand.blocks_per_request(math.ceil(context_tokens) + r.demand.lookahead_tokens)
    at_once = [max(0, r.demand.blocks(kv) - 1) // needed for kv in (r.low, r.high)] if needed else []
    return EstimatedMemory(
        verdict=memory.verdict,
        reason=_reason(memory) or None,
        kv_cache_tokens=memory.kv_cache_tokens,
        requests_at_once=Bounds(*at_once) if at_once else None,
    )


def _reason(memory: MemoryEstimate) -> str:
    from specserve.checks.rules.memory import capacity, gib

    if memory.verdict != "does_not_fit":
        return memory.reason
    parts = memory.per_gpu_bytes
    weights = parts.target_weights + parts.draft_weights
    if weights >= parts.budget:
        return f"the weights take {gib(weights)} per GPU, and vLLM may use {gib(parts.budget)}"
    return capacity(memory)


def _basis(s: MemorySituation, pair: Roofline, *, ranks: int) -> tuple[str, ...]:
    known, there, engines = (
        s.machine.accelerator,
        s.machine.count * s.machine.nodes,
        s.settings.data_parallel_size,
    )
    gbs, tflops = (known.bandwidth_bytes_per_s or 0) / 1e9, (known.flops or 0) / 1e12
    draft = f", draft {pair.draft.bytes_read(1) / 1e9:,.2f} GB" if pair.draft else ", no draft model"
    lines = [
        f"{known.name}: {gbs:,.0f} GB/s, {tflops:,.0f} TFLOPS in 16 bits{f' ({known.rates})' if known.rates else ''}",
        f"weights read in each step: target {pair.target.bytes_read(1) / 1e9:,.2f} GB on each accelerator{draft}",
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
    if engines > 1:
        lines.append(f"requests and tokens/s are those of one of {engines} data-parallel engines")
    if there > ranks:
        lines.append(f"the profile's parallel sizes use {ranks} of {there} accelerators")
    return tuple(lines)


def estimate_request(request: TuneRequest, *, accelerator: str, acceptance: str | None) -> Estimate:
    """The estimate of a command line. Raises UsageError, and FactError if a model cannot be read."""
    from specserve.checks.gather import CheckOptions, gather
    from specserve.profile.load import load_profile
    from specserve.vllm.versions import known_versions

    assumed = read_acceptance(acceptance)
    profile = load_profile(request.profile, settings=request.settings)
    machine = _machine(profile, accelerator)
    known = gather(profile, wanted=CheckOptions(machine=machine, here=False, tell=lambda _: None))
    shipped, context = _shipped(known), known.context
    arm = next((arm for arm in context.arms if arm.path == "speculation"), None)
    if arm is None:
        raise UsageError("the profile does not speculate", hint="add a `speculation` section to it")
    target = context.target or shipped.get("target.model")
    if target is None:
        raise FactError(f"`{profile.target.model}` could not be read")
    s = situation(
        profile,
        target=target,
        machine=machine,
        version=(context.versions or known_versions())[-1],
        speculation=arm.block,
        draft=arm.draft or shipped.get("speculation.model"),
    )
    most = s.settings.max_num_seqs
    loads = whole_numbers(request.concurrency, "--concurrency", least=1, most=65536)
    if any(load > most for load in loads):
        raise too_many_requests(profile, most)
    made = estimate(
        s,
        name=profile.name,
        assumed=replace(assumed, context_tokens=_context(profile, s.settings.max_model_len)),
        concurrency=loads or [load for load in DEFAULT_LOADS if load <= most],
        most_tokens=request.most_tokens or DEFAULT_TOKENS,
        ranks=world_size(profile),
    )
    if not shipped:
        return made
    names = " and ".join(f"`{facts.model}`" for facts in shipped.values())
    text = f"the files of {names} are not here: sizes are computed from the configuration that ships with specserve"
    return replace(made, rests_on=(*made.rests_on, text))


def _shipped(known: Gathered) -> dict[str, ModelFacts]:
    """The shipped configurations of models that could not be read, by the path that names each.

    Raises the FactError of a model that specserve knows nothing about.
    """
    found = {}
    for unread in known.unread:
        if unread.path.startswith("alternatives."):
            continue
        if unread.published is None:
            if isinstance(unread.error, HubUnreachable):
                hint = "check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 for what is here"
                unread.error.hint = hint
            raise unread.error
        found[unread.path] = unread.published
    return found


def read_acceptance(text: str | None) -> Assumed:
    """`0.7`: of each draft token, given the one before; `3.6@4`: the one that gives 3.6 tokens a step at K = 4.

    Raises UsageError for other forms, and for what cannot be.
    """
    if text is None:
        raise UsageError("`--estimate` needs the probability that a draft token is accepted", hint=_FORMS)
    form = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)(?:@([0-9]{1,3}))?", text)
    value = float(form[1]) if form else math.nan
    if form is None or form[2] is None:
        if 0 <= value <= 1:
            return Assumed(value)
        raise UsageError(f"`--acceptance {text}` is not a probability from 0 to 1", hint=_FORMS)
    tokens = int(form[2])
    if not 1 <= tokens <= LONGEST:
        raise UsageError(f"`--acceptance {text}`: K must be a whole number from 1 to {LONGEST}", hint=_FORMS)
    if 1 <= value <= tokens + 1:
        return Assumed(geometric_rate(value, tokens=tokens), value, tokens)
    hint = _FORMS
    if value < 1:  # the other figure that `watch` shows
        length = 1 + value * tokens
        hint = f"a rate of {value:g} is a length of 1 + {value:g} x K: `--acceptance {length:g}@{tokens}`"
    raise UsageError(
        f"`--acceptance {text}` is impossible: a step with K = {tokens} produces 1 to {tokens + 1} tokens",
        hint=hint,
    )


def _machine(profile: Profile, accelerator: str) -> Machine:
    """The accelerator that was named, as many as the profile's parallel sizes need if no count was given."""
    machine = machine_of(accelerator)
    if machine.accelerator.name == CPU:
        raise UsageError(
            "nothing can be estimated for `cpu`: its bandwidth and FLOP/s are not in the catalogue",
            hint="run `specserve tune` without `--estimate` to measure on this machine",
        )
    ranks, there = world_size(profile), machine.count * machine.nodes
    if accelerator.strip()[:1].isdigit() and there < ranks:
        smaller = "or smaller sizes, such as `--set target.tensor_parallel_size=1`"
        raise UsageError(
            f"`--estimate {accelerator}` gives {there}, but the profile's parallel sizes need {ranks} accelerators",
            hint=f"use `--estimate {ranks}x{machine.accelerator.name}`, {smaller}",
        )
    return replace(machine, count=ranks) if there < ranks else machine


def _context(profile: Profile, limit: int) -> float:
    """Tokens of a request on average: its prompt and half of its output, as promised, else a thousand."""
    for promise in profile.expect:
        prompt, output = promise.prompt_tokens or {}, promise.output_tokens or {}
        if "p50" in prompt and "p50" in output:
            return min(limit, prompt["p50"] + output["p50"] / 2)
    return min(limit, DEFAULT_CONTEXT)
