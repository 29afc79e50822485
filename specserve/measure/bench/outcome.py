"""Everything that a run measured as one Result. Starts nothing and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specserve.measure.bench.arms import BASELINE, PROFILE, Arm
from specserve.measure.bench.figures import figures
from specserve.measure.bench.promises import limits, promises
from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Cell, Point, Promise, Result, Verdict, WorkloadInfo
from specserve.measure.bench.speedups import compared, invalid_reason, stops_paying
from specserve.profile.schema import Profile

_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Basis:
    """What a result is made of beside the passes."""

    name: str
    profile: Profile | None
    """Whose promises are held against it; None where the first arm is a URL."""
    arms: tuple[Arm, ...]
    points: tuple[Point, ...]
    promised_at: tuple[Point, ...]
    """The point of each of the profile's promises."""
    launches: int
    created: str
    duration_s: float
    workloads: tuple[WorkloadInfo, ...]
    versions: Mapping[str, str]
    host: Mapping[str, str]
    settings: Mapping[str, str]
    notes: Sequence[str] = ()
    is_complete: bool = True
    price_per_gpu_hour: float | None = None
    models: Mapping[str, str] = field(default_factory=dict)
    """By arm, what a server at a URL serves."""


def outcome(basis: Basis, passes: Sequence[Pass]) -> Result:
    """The result; the first arm is the one that the others are compared with."""
    names = [arm.name for arm in basis.arms]
    limit = limits(basis.profile, basis.promised_at)
    cells: dict[tuple[str, Point], Cell] = {}
    for point in basis.points:
        for arm in basis.arms:
            own = [each for each in passes if each.point == point and each.arm == arm.name]
            price = _price_per_hour(basis, arm)
            found = figures(own, limits=limit.get(point), price_per_hour=price) if own else None
            cells[arm.name, point] = Cell(arm.name, point, found, invalid_reason(own))
    comparisons = tuple(
        compared(cells, passes, arm=name, against=names[0], at=point)
        for point in basis.points
        for name in names[1:]
        if cells[name, point].figures is not None
    )
    infos = [replace(arm.info, model=arm.model or basis.models.get(arm.name, "")) for arm in basis.arms]
    return Result(
        name=basis.name,
        fingerprint=_fingerprint(basis),
        created=basis.created,
        duration_s=basis.duration_s,
        versions=basis.versions,
        host=basis.host,
        launches=basis.launches,
        arms=tuple(infos),
        workloads=basis.workloads,
        cells=tuple(cells.values()),
        comparisons=comparisons,
        promises=_promises(basis, passes),
        stops_paying=stops_paying(comparisons),
        notes=(
            *basis.notes,
            *cut_answers(passes),
            *equal_texts(basis, passes),
            *_crowded(basis),
            *_unpriced(basis),
        ),
        is_complete=basis.is_complete,
        settings=basis.settings,
    )


def _promises(basis: Basis, passes: Sequence[Pass]) -> tuple[Promise, ...]:
    if basis.profile is None:
        return ()
    own, first = _own(basis.profile), basis.arms[0]
    against = first.name if first.is_baseline and first.name != own else None
    return promises(basis.profile, passes, at=basis.promised_at, arm=own, against=against)


def _fingerprint(basis: Basis) -> str | None:
    """Of the profile; None where the first arm is a URL."""
    own = _own(basis.profile) if basis.profile is not None else basis.arms[0].name
    return next((arm.plan.fingerprint for arm in basis.arms if arm.name == own and arm.plan), None)


def _own(profile: Profile) -> str:
    """The arm that the profile itself is: where it does not speculate, the one without speculation."""
    return PROFILE if profile.speculation is not None else BASELINE


def equal_texts(basis: Basis, passes: Sequence[Pass]) -> list[str]:
    """How many greedy answers of each arm are those of the first: speculation must not change them."""
    told = []
    against = basis.arms[0].name
    for arm in basis.arms[1:]:
        mine, theirs = (_texts(passes, name) for name in (arm.name, against))
        both = mine.keys() & theirs.keys()
        if both:
            same = sum(mine[key] == theirs[key] for key in both)
            told.append(
                f"`{arm.name}` gave {same} of {len(both)} greedy answers word for word as `{against}` did; a few "
                "that differ are rounding, `specserve verify` judges it"
                if same < len(both)
                else f"`{arm.name}` gave all {len(both)} greedy answers word for word as `{against}` did"
            )
    return told


def _texts(passes: Sequence[Pass], arm: str) -> dict[tuple[str, str, float, bool], str]:
    """The greedy answers of an arm, by what was asked under which load."""
    return {
        (each.point.workload, request.prompt, float(each.point.concurrency or 0), each.point.prefix_cache): (
            request.text_sha256
        )
        for each in passes
        if each.arm == arm and each.point.temperature == 0
        for request in each.requests
        if request.ok
    }


def cut_answers(passes: Sequence[Pass]) -> list[str]:
    """Workloads most of whose answers never came to their end."""
    told = []
    for name in dict.fromkeys(each.point.workload for each in passes):
        ends = [
            request.finish_reason
            for each in passes
            if each.point.workload == name
            for request in each.requests
            if request.ok
        ]
        share = sum(end == "length" for end in ends) / len(ends) if ends else 0.0
        if share > _MOSTLY:
            told.append(f"{name}: {share:.0%} of the answers were cut off at their max_tokens")
    return told


def _crowded(basis: Basis) -> list[str]:
    """Arms whose answers depend on what they were asked before."""
    return [
        f"`{arm.name}` remembers answers (suffix decoding), and prompts recur in a launch: "
        "this is the acceptance of traffic that repeats itself"
        for arm in basis.arms
        if arm.is_suffix
    ]


def _price_per_hour(basis: Basis, arm: Arm) -> float | None:
    """Of all accelerators that the arm takes; None without a price, and for a server of others."""
    if basis.price_per_gpu_hour is None or arm.plan is None:
        return None
    return basis.price_per_gpu_hour * arm.ranks


def _unpriced(basis: Basis) -> list[str]:
    """Arms without a price, though one is given."""
    if basis.price_per_gpu_hour is None:
        return []
    return [
        f"`{arm.name}` has no price: how many accelerators a server takes that ran already is not known"
        for arm in basis.arms
        if arm.plan is None
    ]


def is_missed(result: Result) -> bool:
    """Whether the whole interval of some promise misses it."""
    return any(promise.kept is False for promise in result.promises)


def is_open(result: Result) -> bool:
    """Whether anything is not decided, for `--strict`."""
    return (
        not result.is_complete
        or any(promise.kept is None for promise in result.promises)
        or any(item.verdict is Verdict.INCONCLUSIVE for item in result.comparisons)
    )
