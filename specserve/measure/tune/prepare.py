"""A tune before it starts: candidates, points and launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.tune.plan import TuneRequest
from specserve.measure.tune.schedule import between, most_requests, situation

if TYPE_CHECKING:
    from specserve.measure.bench.arms import Fit
    from specserve.measure.tune.plan import Candidate, Fitted, Wish
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile


_LOADS = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}
_WORKLOADS = ("chat", "code")
_PROMPTS, _MAX_TOKENS = 12, {"cpu": 64, "cuda": 256}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything before the first launch."""

    asked: TuneRequest
    profile: Profile
    wish: Wish
    room: Fit
    fitted: Fitted

    @property
    def kept(self) -> list[Candidate]:
        """The candidates that are launched."""
        return [each for each in self.wish.candidates if each.name in self.fitted.kept]

    @property
    def confirms(self) -> bool:
        """Whether the choice is launched, too."""
        from specserve.measure.tune.plan import TUNED

        return self.asked.confirm and TUNED in self.fitted.kept


def prepared(asked: TuneRequest, *, starts: bool, notices: Notices) -> Prepared:
    """Candidates, points, launches. Raises ProfileError, CheckFailed, UsageError, FactError."""
    from specserve.measure.bench.arms import fit
    from specserve.measure.bench.plan import prompts_of, sources
    from specserve.measure.tune.candidates import arm, candidates, ideas, not_tried
    from specserve.measure.tune.plan import BASELINE, Wish, fitted
    from specserve.measure.values import seconds

    own, plan = _launched(asked, starts=starts, notices=notices)
    names = sources(asked.workloads)
    workloads, temperatures, loads = _points(asked, own, tuple(names), platform=plan.platform)
    prompts_of(workloads, names)  # one that is none is refused before any launch
    wanted = ideas(own, asked, temperatures=temperatures)
    found, left_out = candidates(own, asked, wanted, loads=loads, plan=plan, starts=starts, notices=notices)
    if not found:
        raise UsageError("no candidate can be launched", hint="; ".join(reason for _, _, reason in left_out))
    most = max(each.most_tokens for each in found)
    wish = Wish(
        name=own.name,
        fingerprint=plan.fingerprint,
        baseline=arm(asked.profile, asked, name=BASELINE, baseline=True, starts=starts, notices=notices),
        candidates=tuple(found),
        left_out=(*left_out, *not_tried(own, asked)),
        workloads=workloads,
        temperatures=temperatures,
        loads=loads,
        objective="throughput",
        runner=situation(own, wanted[0].keys, plan=plan).runner,
        platform=plan.platform,
        sources=names,
        expect=tuple(own.expect),
        vllm=plan.vllm,
        marks=_marks(names),
        between=between(loads, most_tokens=most, most_requests=most_requests(own)),
        prompts=_PROMPTS,
        max_tokens=asked.max_tokens or _MAX_TOKENS[plan.platform],
        budget_s=seconds(asked.budget, option="--budget", least_s=10.0) if asked.budget else None,
    )
    wish = dataclasses.replace(wish, objective=_objective(asked, wish))
    rooms = [fit([wish.baseline, each.arm]) for each in found]  # beside each of them the baseline stays up
    room = min(rooms, key=lambda each: each.at_once)
    return Prepared(asked, own, wish, room, fitted(wish, confirms=asked.confirm))


def _launched(asked: TuneRequest, *, starts: bool, notices: Notices) -> tuple[Profile, LaunchPlan]:
    """The profile as it is written, and its plan; checked if it is to start."""
    from specserve.checks.preflight import cleared
    from specserve.profile.load import load_profile

    _, plan = cleared(asked.profile, settings=asked.settings, port=0, starts=starts, notices=notices)
    _refuse_old(plan.vllm)
    return load_profile(asked.profile, settings=asked.settings), plan


def _marks(sources: Mapping[str, str]) -> dict[str, str]:
    """Hashes of the workloads that are files, by name: another text is another run."""
    files = {name: Path(text) for name, text in sources.items() if Path(text).is_file()}
    return {name: sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def _refuse_old(version: str) -> None:
    """Raises UsageError for a vLLM that does not tell the acceptance of each step."""
    from specserve.vllm.facts import STEP_METRICS

    if not STEP_METRICS.at(version):
        first = next(era.first for era in STEP_METRICS.eras if era.value)
        raise UsageError(
            f"vLLM {version} does not tell what each step accepted (`per_request_spec_decode_metrics`)",
            hint=f"a tune needs vLLM {first} or later; `specserve bench` compares single K with older ones",
        )


def _points(
    asked: TuneRequest, profile: Profile, names: tuple[str, ...], *, platform: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Workloads, temperatures and loads: as asked, else as promised, else the defaults."""
    from specserve.measure.values import numbers, whole_numbers
    from specserve.measure.workloads.shipped import SHIPPED

    promised = [item for item in profile.expect if item.concurrency is not None]
    named = dict.fromkeys(item.workload for item in promised if item.workload in SHIPPED)
    workloads = names or tuple(name for name in named if name) or _WORKLOADS
    temperatures = numbers(asked.temperature, "--temperature", least=0.0, most=2.0) or tuple(
        dict.fromkeys(item.temperature for item in promised if item.temperature is not None)
    )
    loads = whole_numbers(asked.concurrency, "--concurrency", least=1, most=4096) or tuple(
        sorted({item.concurrency for item in promised if item.concurrency is not None})
    )
    given, most = profile.engine.get("max_num_seqs"), most_requests(profile)
    usual = loads or _LOADS[platform]
    kept = tuple(sorted({load for load in usual if load <= most}))
    if not kept or (asked.concurrency and len(kept) < len(set(usual))):
        raise UsageError(
            f"max_num_seqs is {most}{'' if isinstance(given, int) else ' (assumed)'}: "
            "more requests at once would wait",
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    return workloads, temperatures or (0.0,), kept


def _objective(asked: TuneRequest, wish: Wish) -> Any:
    """As asked for; else goodput if a point that is measured has limits. Raises UsageError for goodput without."""
    from specserve.measure.tune.choose import limits_at

    is_limited = any(limits_at(wish.expect, point) is not None for point in wish.points())
    if asked.objective == "goodput" and not is_limited:
        raise UsageError(
            "no promise of the profile limits TTFT or TPOT at a point that is measured",
            hint="`expect: [{max_tpot_p99_ms: 30}]` in the profile, or another `--objective`",
        )
    return asked.objective or ("goodput" if is_limited else "throughput")
