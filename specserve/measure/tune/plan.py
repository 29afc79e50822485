"""What a tune is to do: candidates, loads, prompts, launches, and how many fit the time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.measure.bench.arms import Arm
from specserve.measure.bench.plan import Block, Item
from specserve.measure.bench.result import Point
from specserve.measure.tune import schedule
from specserve.measure.tune.result import Objective
from specserve.measure.workloads.workload import Prompt
from specserve.profile.schema import Expectation

LEAST_SHARE = 0.25
"""Fewer of the requests than this share tell too little: a launch is left out before that."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One launch that would be of use."""

    name: str
    start_s: float
    """Until it serves."""
    measure_s: float
    """For all requests."""
    is_needed: bool = False
    """Nothing can be said without it."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is done in the time."""

    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names with the reason."""
    share: float
    """Of the requests, 0 to 1."""
    seconds: float
    exceeded: str | None = None
    """The budget as it was given, with the least there is, if even what is needed takes longer."""

    @property
    def fits(self) -> bool:
        """Whether what is needed fits the budget."""
        return self.exceeded is None


def fit(wanted: Sequence[Wanted], *, budget_s: float | None) -> Fitted:
    """The first of the wanted launches (they come in order of use) with as many requests as the time allows.

    Needed ones stay in any case; of the others the last goes first.
    """
    kept, left_out, exceeded = list(wanted), [], None
    while budget_s is not None and (least_s := _seconds(kept, LEAST_SHARE)) > budget_s:
        given = f"--budget {duration(budget_s)}"
        optional = [each for each in kept if not each.is_needed]
        if not optional:
            exceeded = f"`{given}`: {duration(math.ceil(least_s))} is the least (a guess)"
            break
        kept.remove(optional[-1])
        left_out.append((optional[-1].name, given))
    share, measuring_s = 1.0, math.fsum(each.measure_s for each in kept)
    if budget_s is not None and measuring_s:
        share = min(1.0, max(LEAST_SHARE, (budget_s - _seconds(kept, 0.0)) / measuring_s))
    names = tuple(each.name for each in kept)
    return Fitted(names, tuple(left_out), share, _seconds(kept, share), exceeded)


def _seconds(kept: Sequence[Wanted], share: float) -> float:
    return math.fsum(each.start_s + each.measure_s * share for each in kept)


def duration(seconds: float) -> str:
    """`45s`, `20m`, `1h30m`: as `--budget` takes it."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts) or "0s"


BASELINE, TUNED = "baseline", "tuned"
_GUESSED_START_S = {"cpu": 30.0, "cuda": 120.0}
_GUESSED_TOKENS_PER_S = {"cpu": 8.0, "cuda": 30.0}
"""Of one request beside others, its prefill included: a guess for the time of a plan, before anything was measured.

On the CPU: what two launches of the demo took on two cores; on CUDA: assumed.
"""
ROUNDS, LEAST_ROUNDS = 3, 2
"""Of the confirmation over all points; with a single one there is no interval."""
_WAVES = 3
"""Requests for each that runs at once, at least: while the last ones run, the load is not what it should be."""
_EXTRA_TOKENS = 48
"""Of an answer of which only the time of a step is wanted."""
EXTRA, AGAIN, CONFIRMING = 1000, 2000, 5000
"""Numbers of blocks: of loads between, of these another time, and of the confirmation; below are those to choose by."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to speculate, as it is launched to be measured."""

    name: str
    arm: Arm
    keys: Mapping[str, Any]
    """The `speculation` block that it stands for, without what only the measurement adds."""
    most_tokens: int
    rungs: Mapping[int, int] = field(default_factory=dict)
    """K by batch size, if several are measured in this launch; else K_max at all."""
    why_no_ladder: str | None = None
    """Why it has one K at every load; None: it follows a schedule by batch size."""
    is_own: bool = False
    runner: str = "v1"
    """vLLM's model runner."""
    small: bool = False
    """A second launch with a small K, if one launch has only one K."""

    @property
    def follows_schedule(self) -> bool:
        """Whether it drafts as many tokens as a schedule by batch size says."""
        return self.why_no_ladder is None

    def tokens_at(self, load: int) -> int:
        """What it drafts at this load."""
        return self.rungs.get(load, self.most_tokens)


@dataclass(frozen=True, slots=True)
class Wish:
    """A whole tune, before its first launch."""

    name: str
    fingerprint: str
    baseline: Arm
    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str, str], ...]
    """Name, method and reason."""
    workloads: tuple[str, ...]
    temperatures: tuple[float, ...]
    loads: tuple[int, ...]
    objective: Objective
    runner: str
    platform: str
    sources: Mapping[str, str] = field(default_factory=dict)
    """What a workload is loaded from, by its name, if that is a file."""
    expect: tuple[Expectation, ...] = ()
    """The profile's promises."""
    vllm: str = ""
    """The version that is measured."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the workloads' files."""
    between: tuple[int, ...] = ()
    """Loads at which only a step of the server without speculation is timed."""
    prompts: int = 12
    """Of a workload, to choose by; the others confirm."""
    max_tokens: int = 128
    budget_s: float | None = None

    @property
    def digest(self) -> str:
        """What tells runs apart whose passes must not be mixed."""
        laid = [
            (each.name, _fingerprint(each.arm), dict(each.keys), dict(each.rungs), each.most_tokens)
            for each in self.candidates
        ]
        content = [
            _fingerprint(self.baseline), laid, self.workloads, self.temperatures, self.loads, self.between,
            self.prompts, self.max_tokens, self.platform, self.vllm, dict(self.marks),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def extras(self, candidate: Candidate | None) -> Mapping[int, int]:
        """K by load, of loads at which only a step is timed. `candidate`: None is the server without speculation."""
        rungs = dict.fromkeys(self.between, 0) if candidate is None else candidate.rungs
        return {load: tokens for load, tokens in rungs.items() if load not in self.loads}

    def points(self) -> list[Point]:
        """Every workload at every temperature and load."""
        return [
            Point(workload, temperature, load)
            for workload in self.workloads
            for temperature in self.temperatures
            for load in self.loads
        ]


def _fingerprint(arm: Arm) -> str:
    return arm.plan.fingerprint if arm.plan is not None else ""


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """One pass of a launch: a block, and what is drafted in it."""

    block: Block
    tokens: int
    is_extra: bool = False
    """Only its step time is used."""


def split(prompts: Sequence[Prompt], count: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Prompts to choose by, spread evenly, and the others, to confirm with: none is in both."""
    count = max(1, min(count, (len(prompts) + 1) // 2))
    chosen = {index * len(prompts) // count for index in range(count)}
    first = tuple(prompt for index, prompt in enumerate(prompts) if index in chosen)
    rest = tuple(prompt for index, prompt in enumerate(prompts) if index not in chosen)
    return first, rest or first


def items(prompts: Sequence[Prompt], *, least: int) -> tuple[Item, ...]:
    """Every prompt once, and as often again as it takes to have so many requests."""
    times = max(1, -(-least // len(prompts)))
    return tuple(Item(prompt, copy) for copy in range(1, times + 1) for prompt in prompts)[
        : max(least, len(prompts))
    ]


def cells(
    wish: Wish, prompts: Mapping[str, Sequence[Prompt]], *, candidate: Candidate | None, share: float = 1.0
) -> list[PlannedPass]:
    """The passes of one launch, in order. Block numbers say what is measured, so that a resumed tune finds it.

    Loads between come first and last, so that a bad minute of the machine is not all that is known of them.
    """
    found = _extras(wish, prompts, candidate, first=EXTRA)
    for number, point in enumerate(wish.points()):
        load = point.concurrency or 1
        some = list(prompts[point.workload])[: max(2, round(len(prompts[point.workload]) * share))]
        block = Block(number, point, items(some, least=_WAVES * load), number)
        found.append(PlannedPass(block, candidate.tokens_at(load) if candidate else 0))
    return found + _extras(wish, prompts, candidate, first=AGAIN)


def _extras(
    wish: Wish, prompts: Mapping[str, Sequence[Prompt]], candidate: Candidate | None, *, first: int
) -> list[PlannedPass]:
    """Loads between: only a step's time is of use."""
    workload, temperature = wish.workloads[0], wish.temperatures[0]
    most = _EXTRA_TOKENS if candidate is not None else _EXTRA_TOKENS // 2  # with one a step fewer do
    short = [replace(prompt, max_tokens=min(prompt.max_tokens, most)) for prompt in prompts[workload]]
    found = []
    for load, tokens in wish.extras(candidate).items():
        count = load + max(2, load // 4)
        some = items(short, least=count)[:count]
        block = Block(first + load, Point(workload, temperature, load), some, load)
        found.append(PlannedPass(block, tokens, is_extra=True))
    return found


def confirming(wish: Wish, held_out: Mapping[str, Sequence[Prompt]], *, share: float = 1.0) -> list[Block]:
    """Rounds over all points, with prompts that nothing was chosen by. `share`: of the requests, by the budget."""
    found = []
    for place in range(ROUNDS):
        for number, point in enumerate(wish.points()):
            prompts = list(held_out[point.workload])
            turned = prompts[place % len(prompts) :] + prompts[: place % len(prompts)]
            least = max(4, 2 * (point.concurrency or 1))
            count = max(least, round(share * _confirming_requests(len(prompts), point.concurrency or 1)))
            some = items(turned[:count], least=count)
            found.append(Block(CONFIRMING + place * 500 + number, point, some, 77 + place))
    return found


def _confirming_requests(prompts: int, load: int) -> int:
    """In one round at one load."""
    return max(_WAVES * load, -(-prompts // ROUNDS), 4)


def fitted(wish: Wish, *, confirms: bool = True) -> Fitted:
    """Which launches are made, and with how many of the prompts, by a guess of what they take.

    `confirms`: whether the choice is to be launched, too.
    """
    start_s, rate = _GUESSED_START_S[wish.platform], _GUESSED_TOKENS_PER_S[wish.platform]
    pass_s = measuring_s(wish, tokens_per_s=rate)
    each_s = 2 * _WAVES * _EXTRA_TOKENS / 2 / rate  # of a load between, its two passes
    wanted = [Wanted(BASELINE, start_s, pass_s + each_s * len(wish.extras(None)), is_needed=True)]
    for index, each in enumerate(wish.candidates):
        extras_s = each_s * len(wish.extras(each))
        wanted.append(Wanted(each.name, start_s, pass_s + extras_s, is_needed=index == 0))
    own = [each for each in wanted if each.is_needed]
    confirming_s = confirmation_s(wish, tokens_per_s=rate)
    confirm = [Wanted(TUNED, start_s, confirming_s, is_needed=False)] if confirms else []
    return fit([*own, *confirm, *(each for each in wanted if not each.is_needed)], budget_s=wish.budget_s)


def measuring_s(wish: Wish, *, tokens_per_s: float) -> float:
    """Seconds of one launch's passes, if a request makes so many tokens/s at every load."""
    requests = [max(wish.prompts, _WAVES * load) / load for load in wish.loads]
    return sum(requests) * wish.max_tokens / tokens_per_s * len(wish.workloads) * len(wish.temperatures)


def confirmation_s(wish: Wish, *, tokens_per_s: float) -> float:
    """Seconds of the confirmation's passes, of both servers."""
    requests = [2 * ROUNDS * _confirming_requests(wish.prompts, load) / load for load in wish.loads]
    return sum(requests) * wish.max_tokens / tokens_per_s * len(wish.workloads) * len(wish.temperatures)


def in_words(name: str) -> str:
    """A launch as a person calls it."""
    return "the confirmation" if name == TUNED else name


def small_tokens(most: int) -> int:
    """The K of a second launch, far enough from K_max to tell cost by K."""
    return max(1, min(2, most - 1))


def ladder_of(
    situation: schedule.Situation, *, loads: Sequence[int], most_tokens: int, most_requests: int
) -> tuple[Mapping[int, int], str | None]:
    """K by batch size for one launch; or none, with the reason."""
    reason = schedule.why_no_ladder(situation)
    if reason is not None:
        return {}, reason
    found = dict(schedule.rungs(loads, most_tokens=most_tokens, most_requests=most_requests))
    beyond = max(found) + 1
    if beyond <= most_requests:
        found[beyond] = 0  # what a K = 0 range costs, once drafts are resident
    return found, None


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the command line says, as `run.json` keeps it."""

    profile: str
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    temperature: str | None = None
    objective: str | None = None
    candidates: tuple[str, ...] = ()
    """Beside the profile's own: `ngram`, `suffix`, an alternative of the profile, or a draft model."""
    most_tokens: int | None = None
    max_tokens: int | None = None
    budget: str | None = None
    confirm: bool = True
    settings: tuple[str, ...] = ()


OPTIONS = {
    "workloads": "workload", "concurrency": "concurrency", "temperature": "temperature", "objective": "objective",
    "candidates": "candidate", "most_tokens": "k-max", "max_tokens": "max-tokens", "budget": "budget",
    "confirm": "no-confirm", "settings": "set",
}  # fmt: skip
"""The command line's name for each."""
