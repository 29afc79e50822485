"""What a tune measures: on which servers, with which prompts, at which loads, in how much time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.files import state_folder
from specserve.measure.bench.passes import PER_SLOT
from specserve.measure.bench.plan import (
    BASELINE,
    BUDGET,
    LOADS,
    WORKLOADS,
    BenchRequest,
    Variant,
    plan_variant,
    points_of,
    prompts_of,
    side_by_side,
    sources,
)
from specserve.measure.bench.result import Point
from specserve.measure.values import ASSUMED_SPEEDS, seconds
from specserve.vllm.speculation import METHODS, SCHEDULE

ROUNDS = 8
"""Rounds over all points; each of them has one block of requests for every point."""
USUAL_MOST_TOKENS = 8
_MAX_TOKENS = {"cpu": 48, "cuda": 256}
_DETAILED = "engine.per_request_spec_decode_metrics=detailed"
_K = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class TuneRequest(BenchRequest):
    """What the command line says: of a benchmark's options some, and two more."""

    profile: str = ""
    alternative: str | None = None
    most_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """How many tokens are drafted: the same at every batch size, or others above one."""

    tokens: int
    last_batch: int | None = None
    """The largest batch with `tokens`; None: all have them."""
    tokens_above: int = 0
    largest_load: int = 0
    """vLLM carries the last range on beyond its end."""

    @property
    def name(self) -> str:
        """Of its variant: `k4`, `k5-to-8-k2`."""
        if self.last_batch is None:
            return f"k{self.tokens}"
        return f"k{self.tokens}-to-{self.last_batch}-k{self.tokens_above}"

    @property
    def words(self) -> str:
        """`K = 5 up to 8 requests, K = 2 above`."""
        if self.last_batch is None:
            return f"K = {self.tokens}"
        return f"K = {self.tokens} up to {self.last_batch} requests, K = {self.tokens_above} above"

    @property
    def edge(self) -> int:
        """The first batch with the K above, where K may change from step to step."""
        return (self.last_batch or 0) + 1

    @property
    def keys(self) -> dict[str, Any]:
        """What a `speculation` block says of it."""
        most = max(self.tokens, self.tokens_above)
        if self.last_batch is None:
            return {_K: most}
        above = [self.edge, self.largest_load, self.tokens_above]
        return {_K: most, SCHEDULE: [[1, self.last_batch, self.tokens], above]}


@dataclass(frozen=True, slots=True)
class TunePlan:
    """A tune before its first launch."""

    request: TuneRequest
    name: str
    keys: Mapping[str, Any]
    """The `speculation` block without what says how many tokens are drafted."""
    own_tokens: int
    most_tokens: int
    """K_max, which is launched first: every smaller K is computed from it."""
    baseline: Variant
    largest: Variant
    points: tuple[Point, ...]
    platform: str
    vllm: str
    together: bool
    sources: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int = 48
    limit: int | None = None
    """Prompts of a workload, at most."""
    budget_s: float = 1800.0

    def variant(self, setting: Setting, *, notices: Notices) -> Variant:
        """Plan the server with this setting. Raises ProfileError."""
        block = {**self.keys, **setting.keys}
        return _planned(self.request.profile, setting.name, block, starts=True, notices=notices)

    @property
    def place(self) -> Path:
        """Where its run lies: the same command finds it again, another one has its own place."""
        files = [Path(text) for text in self.sources.values()]
        texts = [sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
        plans = [each.plan and each.plan.fingerprint for each in (self.baseline, self.largest)]
        points = [dataclasses.astuple(point) for point in self.points]
        content = json.dumps([plans, points, texts, self.vllm, self.max_tokens])
        mark = sha256(content.encode()).hexdigest()[:8]
        return state_folder() / "tune" / f"{self.name}-{mark}"

    def block_s(self, point: Point, per_slot: int) -> float:
        """Assumed seconds of one block on one server."""
        load = point.concurrency
        return ASSUMED_SPEEDS[self.platform].seconds(per_slot * load * self.max_tokens, load)

    def seconds(self, per_slot: int) -> float:
        """Assumed seconds of the whole: without speculation, with K_max, with the best K."""
        launches = 3 if self.most_tokens > 1 else 2
        servers = 2 * (launches - 1) if self.together else launches
        round_s = sum(self.block_s(point, per_slot) for point in self.points)
        return launches * ASSUMED_SPEEDS[self.platform].start_s + servers * ROUNDS * round_s

    @property
    def per_slot(self) -> int:
        """Requests of a block for each that runs at once: fewer if half of the rounds don't fit."""
        return PER_SLOT if self.seconds(PER_SLOT) <= 2 * self.budget_s else 1


def plan_tune(request: TuneRequest, *, starts: bool, notices: Notices) -> TunePlan:
    """Plan a command. `starts`: the machine is checked, too. Raises SpecserveError."""
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions

    options = LaunchOptions(port=0, alternative=request.alternative, starts=starts)
    profile, launch = prepare(request.profile, options, notices=notices)
    if profile.speculation is None:
        raise UsageError(
            f"`{profile.file}` does not speculate: there is nothing to tune",
            hint="add a `speculation` section; `specserve drafts` lists drafts for the target",
        )
    points = points_of(request, defaults=(WORKLOADS, LOADS[launch.platform]))
    files = sources(request.workloads)
    prompts_of((point.workload for point in points), files)  # refused before any launch
    keys = {
        key: value for key, value in profile.speculation.keys.items() if key not in (_K, SCHEDULE)
    }
    given = str(profile.speculation.keys.get(_K) or 1)
    own, most_requests = int(given) if given.isdigit() else 1, profile.engine.get("max_num_seqs")
    if isinstance(most_requests, int) and max(loads_of(points)) > most_requests:
        raise UsageError(
            f"max_num_seqs is {most_requests}: at a higher concurrency, requests would wait",
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    most = request.most_tokens or max(own, USUAL_MOST_TOKENS)
    method = METHODS[keys["method"]]
    if method.in_one_pass or method.in_target or keys.get("parallel_drafting"):
        most = min(request.most_tokens or own, own)  # such a head drafts a block of that size
    largest = Setting(most)
    planned = partial(_planned, request.profile, starts=starts, notices=notices)
    baseline, variant = planned(BASELINE, None), planned(largest.name, {**keys, **largest.keys})
    return TunePlan(
        request=request,
        name=profile.name,
        keys=keys,
        own_tokens=own,
        most_tokens=most,
        baseline=baseline,
        largest=variant,
        points=tuple(sorted(points, key=lambda point: point.concurrency)),
        platform=launch.platform,
        vllm=launch.vllm,
        together=side_by_side([baseline, variant]),
        sources=files,
        max_tokens=_MAX_TOKENS[launch.platform],
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=10.0),
    )


def _planned(
    path: str, name: str, block: Mapping[str, Any] | None, *, starts: bool, notices: Notices
) -> Variant:
    """Plan a server with this `speculation`; None: without."""
    from specserve.vllm.arguments import jsonable

    told = [] if block is None else [f"speculation={json.dumps(jsonable(block))}", _DETAILED]
    return plan_variant(
        path,
        name,
        told,
        alternative=BASELINE if block is None else None,
        check=False,
        starts=starts,
        notices=notices,
    )


def loads_of(points: Sequence[Point]) -> list[int]:
    """The concurrencies, in order."""
    return sorted({point.concurrency for point in points})
