"""A benchmark before it starts: its variants, points and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.placement import Placement, Session, placement, sessions
from specserve.measure.bench.request import BenchRequest, points_of, prompts_of, sources
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import BASELINE, PROFILE, Variant, plan_variants
from specserve.measure.values import seconds

if TYPE_CHECKING:
    from specserve.profile.schema import Profile

BUDGET = "30m"
_WORKLOADS = ("chat", "code")
_LOADS = {"cpu": (1, 4), "cuda": (1, 4, 16)}
_BLOCKS, _CPU_TOKENS = 8, 64
_QUICK_BLOCKS, _QUICK_PROMPTS, _QUICK_TOKENS = 6, 18, 48


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What a benchmark measures."""

    variants: tuple[Variant, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    blocks: int
    """Blocks of each point in a round; each launch has one round, or more until all is decided."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    budget_s: float = 1800.0
    """Time for measuring; launches come on top. Blocks that would begin later are left out."""
    request: BenchRequest = field(default_factory=BenchRequest)
    profile: Profile | None = None
    placement: Placement = field(default_factory=lambda: Placement(False, ""))
    prompts: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The profile's, or the first variant's."""
        return self.profile.name if self.profile is not None else self.variants[0].name

    @property
    def own_variant(self) -> str:
        """The variant that the profile itself is; without `speculation` it is the baseline."""
        if self.profile is None:
            return self.variants[0].name
        return PROFILE if self.profile.speculation is not None else BASELINE

    @property
    def launches(self) -> int:
        """Launches of each variant."""
        return sum(self.variants[-1].name in each.variants for each in self.sessions)

    def launched(self, *names: str) -> int:
        """Return how many of these variants are started for the benchmark."""
        return sum(each.name in names and each.plan is not None for each in self.variants)

    @property
    def platform(self) -> str | None:
        """`cpu` or `cuda` if any variant is started here."""
        return next((each.plan.platform for each in self.variants if each.plan is not None), None)


def plan_bench(
    request: BenchRequest, *, notices: Notices, starts: bool = True, together: bool | None = None
) -> BenchPlan:
    """Plan a command. `starts`: models, memory and machine are checked, too.

    `together`: whether the servers of the run that is resumed ran at the same time. Raises
    ProfileError, CheckFailed, UsageError.
    """
    if request.profile == "-" or "-" in request.workloads:
        why = "`bench` cannot read from stdin because the run could not be resumed"
        raise UsageError(why, hint="name a file")
    profile, variants = plan_variants(request, starts=starts, notices=notices)
    room = placement(variants)
    if together is not None:
        room = room._replace(together=together)
    platform = next((each.plan.platform for each in variants if each.plan is not None), "cuda")
    points = points_of(request, defaults=(_WORKLOADS, _LOADS.get(platform, (1, 4))))
    if request.launches and not any(each.plan is not None for each in variants):
        raise UsageError("`--launches` cannot start servers again that bench did not start")
    # one server at a time: A B B A, so that a steady drift of the machine cancels
    launches = request.launches or (1 if room.together or request.quick else 2)
    files = sources(request.workloads)
    limit = _QUICK_PROMPTS if request.quick else None
    tokens = _QUICK_TOKENS if request.quick else _CPU_TOKENS if platform == "cpu" else None
    return BenchPlan(
        variants=variants,
        sessions=sessions(variants, launches=launches, together=room.together),
        points=points,
        blocks=_QUICK_BLOCKS if request.quick else _BLOCKS,
        sources=files,
        max_tokens=request.max_tokens or tokens,
        limit=limit,
        budget_s=seconds(request.budget or BUDGET, option="--budget", least_s=5.0),
        request=request,
        profile=profile,
        placement=room,
        prompts=prompts_of((point.workload for point in points), files, limit=limit),
    )
