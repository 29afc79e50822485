"""What a tune measures: candidates and their launches, loads, blocks of requests, and how many fit the budget."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specserve.errors import UsageError
from specserve.measure.bench.plan import PER_SLOT, Block, Item, numbered, points
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import Fit, Variant
from specserve.measure.values import ASSUMED_SPEEDS
from specserve.measure.workloads.workload import Prompt
from specserve.profile.schema import Expectation, Hardware, Profile

Objective = Literal["tpot", "throughput", "goodput"]
BASELINE, TUNED = "baseline", "tuned"
LEAST_SHARE = 0.25
"""Fewer of the requests than this share say too little: a launch is left out before that."""
ROUNDS, LEAST_ROUNDS = 3, 2
"""Rounds of the confirmation over all points; a single one gives no interval."""
_ROUND = 500
EXTRA, AGAIN, CONFIRMING = 1000, 2000, 5000
"""First block numbers of loads between the points, of these another time, and of the confirmation."""
_EXTRA_TOKENS = 48
"""Of an answer of which only the time of a step is wanted."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the command line says, as `run.json` keeps it."""

    profile: str
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    temperature: str | None = None
    objective: Objective | None = None
    candidates: tuple[str, ...] = ()
    """Beside the profile's own: `ngram`, `suffix`, an alternative of the profile, or a draft model."""
    most_tokens: int | None = None
    max_tokens: int | None = None
    budget: str | None = None
    confirm: bool = True
    settings: tuple[str, ...] = ()

    @property
    def json(self) -> dict[str, Any]:
        """The values as a JSON file gives them back."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content


@dataclass(frozen=True, slots=True)
class CandidateInfo:
    """One way to speculate that was looked at, or why it was not."""

    name: str
    method: str
    draft_model: str | None = None
    draft_sample_method: str | None = None
    runner: str | None = None
    """vLLM's model runner, `v1` or `v2`."""
    measured_with: int | None = None
    """K_max; nothing is known above it."""
    follows_schedule: bool = True
    """Whether its drafter drafts what a schedule by batch size says."""
    zero_cost: float | None = None
    """Rate of a K = 0 range over that of a server without speculation, measured."""
    has_ladder: bool = False
    """Whether several K were measured in one launch."""
    step_model_error: float | None = None
    """How far the form of the step times is off at the measured points, the median, as a share."""
    left_out: str | None = None
    """Why it was not measured."""


@dataclass(frozen=True, slots=True)
class TuneLaunch:
    """One server that is measured, and how many tokens it drafts at each load."""

    arm: Variant
    most_tokens: int = 0
    """0: without speculation."""
    tokens_by_load: Mapping[int, int] = field(default_factory=dict)
    """K by load if that differs. Loads that are none of the plan's points are only measured for the time of a step."""

    @property
    def name(self) -> str:
        """The arm's."""
        return self.arm.name

    def tokens_at(self, load: int) -> int:
        """K at this load."""
        return self.tokens_by_load.get(load, self.most_tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to speculate."""

    name: str
    keys: Mapping[str, Any]
    """The `speculation` block that it stands for, without what only the measurement adds."""
    is_own: bool = False
    launches: tuple[TuneLaunch, ...] = ()
    """One with K_max; a second one with a small K if a launch has one K at every load."""
    runner: str = "v1"
    """vLLM's model runner."""
    ladder_obstacle: str | None = None
    """Why a launch has one K at every load; None: it follows a schedule by batch size."""

    @property
    def most_tokens(self) -> int:
        """K_max."""
        return self.launches[0].most_tokens


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """One launch and the time that it takes."""

    name: str
    start_s: float
    measure_s: float
    """For all requests."""
    is_needed: bool = False
    """Nothing can be said without it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What is done in the time that there is."""

    kept: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    """Launches with the reason."""
    share: float
    """Of the requests, 0 to 1."""
    seconds: float
    exceeded: str | None = None
    """The budget as it was given, with the least there is, if even what is needed takes longer."""


def fit_budget(wanted: Sequence[LaunchCost], *, budget_s: float | None) -> Budget:
    """The first of the launches, which come in order of use, with as many requests as the time allows.

    Needed ones stay in any case; of the others the last goes first.
    """

    def seconds(share: float) -> float:
        return math.fsum(each.start_s + each.measure_s * share for each in kept)

    kept, left_out, exceeded, share = list(wanted), [], None, 1.0
    if budget_s is not None:
        option = f"--budget {duration(budget_s)}"
        while seconds(LEAST_SHARE) > budget_s and any(not each.is_needed for each in kept):
            last = [each for each in kept if not each.is_needed][-1]
            kept.remove(last)
            left_out.append((last.name, option))
        if (least_s := seconds(LEAST_SHARE)) > budget_s:
            exceeded = f"`{option}`: {duration(math.ceil(least_s))} is the least (a guess)"
        if measuring_s := seconds(1.0) - seconds(0.0):
            share = min(1.0, max(LEAST_SHARE, (budget_s - seconds(0.0)) / measuring_s))
    return Budget(tuple(each.name for each in kept), tuple(left_out), share, seconds(share), exceeded)


def duration(seconds: float) -> str:
    """`45s`, `20m`, `1h30m`: as `--budget` takes it."""
    whole = round(seconds)
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


@dataclass(frozen=True, slots=True)
class TunePlan:
    """A whole tune, before its first launch."""

    request: TuneRequest
    name: str
    fingerprint: str
    baseline: TuneLaunch
    candidates: tuple[Candidate, ...]
    workloads: tuple[str, ...]
    temperatures: tuple[float, ...]
    loads: tuple[int, ...]
    objective: Objective
    runner: str
    platform: str
    left_out: tuple[CandidateInfo, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """What a workload is loaded from, by its name, if that is a file."""
    expect: tuple[Expectation, ...] = ()
    """The profile's promises."""
    vllm: str = ""
    """The version that is measured."""
    file_hashes: Mapping[str, str] = field(default_factory=dict)
    """Of the workloads that are files."""
    prompts: int = 12
    """Of a workload, to choose by; the others confirm."""
    max_tokens: int = 128
    budget_s: float | None = None
    room: Fit = field(default_factory=lambda: Fit(1, ""))
    """How many servers run at the same time."""
    hardware: Hardware | None = None
    """What the profile is meant for."""

    @property
    def other_hardware(self) -> str | None:
        """The same in words, if it is of another platform than this machine."""
        name = self.hardware.accelerator if self.hardware else None
        if self.hardware is None or name is None or (name == "cpu") == (self.platform == "cpu"):
            return None
        count = self.hardware.count * self.hardware.nodes
        return f"{count}x{name}" if count > 1 else name

    @property
    def points(self) -> tuple[Point, ...]:
        """Every workload at every temperature and load."""
        return points(self.workloads, concurrency=self.loads, rates=(), temperatures=self.temperatures)

    @property
    def launches(self) -> list[TuneLaunch]:
        """Every launch but the confirmation; a pass has the place of its launch in this list."""
        return [self.baseline, *(launch for each in self.candidates for launch in each.launches)]

    @property
    def budget(self) -> Budget:
        """Which launches are made, and with how many of the prompts, by a guess of what they take."""
        speed = ASSUMED_SPEEDS[self.platform]
        first, second, *others = (
            LaunchCost(
                launch.name,
                speed.start_s,
                self._seconds(self._choosing_requests)
                # a load between has two passes
                + sum(
                    speed.seconds(2 * PER_SLOT * load * _EXTRA_TOKENS / 2, load)
                    for load in self.extra_loads(launch)
                ),
                is_needed=number < 2,
            )
            for number, launch in enumerate(self.launches)
        )
        confirming_s = self._seconds(self._confirming_requests) * 2 * ROUNDS
        confirmation = [LaunchCost(TUNED, speed.start_s, confirming_s)] if self.request.confirm else []
        return fit_budget([first, second, *confirmation, *others], budget_s=self.budget_s)

    @property
    def confirms(self) -> bool:
        """Whether the choice is launched, too."""
        return TUNED in self.budget.kept

    @property
    def confirmation_passes(self) -> float:
        """What the fewest rounds of the confirmation take, in passes that choose."""
        relative = self._seconds(self._confirming_requests) / self._seconds(self._choosing_requests)
        return 2 * LEAST_ROUNDS * relative * len(self.points)

    def _seconds(self, requests: Callable[[int], int]) -> float:
        """Assumed seconds of a pass at every point."""
        repeated, speed = len(self.workloads) * len(self.temperatures), ASSUMED_SPEEDS[self.platform]
        return repeated * sum(speed.seconds(requests(load) * self.max_tokens, load) for load in self.loads)

    def _choosing_requests(self, load: int) -> int:
        return max(self.prompts, PER_SLOT * load)

    def _confirming_requests(self, load: int, prompts: int | None = None) -> int:
        """Requests of one round at one load."""
        return max(PER_SLOT * load, -(-(prompts or self.prompts) // ROUNDS), 4)

    @property
    def digest(self) -> str:
        """What tells runs apart whose passes must not be mixed."""

        def launch(each: TuneLaunch) -> list[Any]:
            fingerprint = each.arm.plan.fingerprint if each.arm.plan else ""
            return [each.name, fingerprint, dict(each.tokens_by_load), each.most_tokens]

        content = [
            list(map(launch, self.launches)), [dict(each.keys) for each in self.candidates], self.workloads,
            self.temperatures, self.loads, self.prompts, self.max_tokens, self.platform, self.vllm,
            dict(self.file_hashes),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def extra_loads(self, launch: TuneLaunch) -> list[int]:
        """Loads at which only a step is timed."""
        return [load for load in launch.tokens_by_load if load not in self.loads]

    def passes(self, launch: TuneLaunch) -> list[tuple[int, Point]]:
        """The block numbers and points of a launch, in order; a resumed tune finds its passes by these numbers.

        Loads between come first and last, so that a bad minute of the machine is not all that is known of them.
        """
        between = [
            (load, Point(self.workloads[0], self.temperatures[0], load)) for load in self.extra_loads(launch)
        ]
        before, after = ([(first + load, point) for load, point in between] for first in (EXTRA, AGAIN))
        return [*before, *enumerate(self.points), *after]

    def confirmation(self) -> list[tuple[int, Point]]:
        """The same for the confirmation: rounds over all points."""
        return [
            (CONFIRMING + place * _ROUND + number, point)
            for place in range(ROUNDS)
            for number, point in enumerate(self.points)
        ]

    def block(
        self,
        number: int,
        point: Point,
        prompts: Sequence[Prompt],
        *,
        is_plain: bool = False,
        share: float = 1.0,
    ) -> Block:
        """The requests of one pass. `share`: of the prompts, by the budget. `is_plain`: on the baseline."""
        load = point.concurrency or 1
        if number >= CONFIRMING:
            place = (number - CONFIRMING) // _ROUND
            turned = [*prompts[place % len(prompts) :], *prompts[: place % len(prompts)]]
            wanted = share * self._confirming_requests(load, len(prompts))
            count = max(4, 2 * load, round(wanted))
            return Block(number, point, items(turned[:count], least=count), 77 + place)
        if number >= EXTRA:
            most = _EXTRA_TOKENS // 2 if is_plain else _EXTRA_TOKENS  # with one token a step fewer do
            short = [replace(prompt, max_tokens=min(prompt.max_tokens, most)) for prompt in prompts]
            count = load + max(2, load // 4)
            return Block(number, point, items(short[:count], least=count), load)
        some = prompts[: max(2, round(len(prompts) * share))]
        return Block(number, point, items(some, least=PER_SLOT * load), number)


def too_many_requests(profile: Profile, most: int) -> UsageError:
    """The error of a concurrency that the server does not run at the same time."""
    assumed = "" if "max_num_seqs" in profile.engine else " (assumed)"
    return UsageError(
        f"max_num_seqs is {most}{assumed}: at a higher concurrency, requests would wait",
        hint="lower `--concurrency`, or set `engine.max_num_seqs`",
    )


def is_optional(block: int) -> bool:
    """Whether a pass is left out if the budget is used up: a load between, or a third round of the confirmation."""
    return EXTRA <= block < CONFIRMING or block >= CONFIRMING + LEAST_ROUNDS * _ROUND


def split(prompts: Sequence[Prompt], count: int) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """Prompts to choose by, spread evenly, and the others, to confirm with: none is in both."""
    count = max(1, min(count, (len(prompts) + 1) // 2))
    chosen = {index * len(prompts) // count for index in range(count)}
    first = tuple(prompt for index, prompt in enumerate(prompts) if index in chosen)
    rest = tuple(prompt for index, prompt in enumerate(prompts) if index not in chosen)
    return first, rest or first


def items(prompts: Sequence[Prompt], *, least: int) -> tuple[Item, ...]:
    """Every prompt once, and as often again as it takes to have that many requests."""
    count = max(least, len(prompts))
    return numbered([prompts[at % len(prompts)] for at in range(count)])
