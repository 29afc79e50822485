"""From a request to the plan of a tune: what could be tried, how each way is launched, and why others are left out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices, Severity
from specserve.errors import CheckFailed, SpecserveError, UsageError
from specserve.measure.bench.plan import prompts_of, sources
from specserve.measure.bench.variants import Variant, fit, plan_arm
from specserve.measure.tune.choose import between, ranges, schedule_obstacle
from specserve.measure.tune.plan import (
    BASELINE,
    TUNED,
    Candidate,
    CandidateInfo,
    Objective,
    TuneLaunch,
    TunePlan,
    TuneRequest,
    too_many_requests,
)
from specserve.measure.values import numbers, seconds, whole_numbers

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile

_SAMPLED = frozenset({"draft_model", "eagle", "eagle3", "mtp"})
"""Methods whose drafts can be sampled."""
WITHOUT_DRAFT: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
"""The blocks of the methods that need no draft."""
_LOADS = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}
_WORKLOADS = ("chat", "code")
_MAX_TOKENS = {"cpu": 64, "cuda": 256}
_MOST_TOKENS = 8
MOST_REQUESTS = 256
"""vLLM's usual `max_num_seqs`; larger accelerators have more, and no machine has less."""
_DETAILED = "engine.per_request_spec_decode_metrics=detailed"


def plan_tune(request: TuneRequest, *, starts: bool, notices: Notices) -> TunePlan:
    """The plan of a command. `starts`: models, memory and machine are checked, too.

    Raises ProfileError, CheckFailed, UsageError, FactError.
    """
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.load import load_profile

    options = LaunchOptions(settings=request.settings, port=0, starts=starts)
    _, plan = cleared(request.profile, options, notices=notices)
    _refuse_old(plan.vllm)
    profile = load_profile(request.profile, settings=request.settings)
    files = sources(request.workloads)
    workloads, temperatures, loads = _points(request, profile, tuple(files), platform=plan.platform)
    prompts_of(workloads, files)  # a workload that cannot be read is refused before any launch
    planner = Planner(request, profile, plan, starts, notices)
    candidates, left_out = planner.candidates(ideas(profile, request, temperatures=temperatures), loads)
    most = max(each.most_tokens for each in candidates)
    plain = dict.fromkeys(between(loads, most_tokens=most, most_requests=most_requests(profile)), 0)
    baseline = TuneLaunch(planner.arm(BASELINE), 0, plain)
    hashed = {name: Path(text) for name, text in files.items() if Path(text).is_file()}
    rooms = [
        fit([baseline.arm, each.launches[0].arm]) for each in candidates
    ]  # the baseline stays up beside each
    found = TunePlan(
        request=request,
        name=profile.name,
        fingerprint=plan.fingerprint,
        baseline=baseline,
        candidates=tuple(candidates),
        workloads=workloads,
        temperatures=temperatures,
        loads=loads,
        objective="throughput",
        runner=candidates[0].runner,
        platform=plan.platform,
        left_out=(*left_out, *not_tried(profile, request)),
        sources=files,
        expect=tuple(profile.expect),
        vllm=plan.vllm,
        file_hashes={name: sha256(file.read_bytes()).hexdigest() for name, file in hashed.items()},
        max_tokens=request.max_tokens or _MAX_TOKENS[plan.platform],
        budget_s=seconds(request.budget, option="--budget", least_s=10.0) if request.budget else None,
        room=min(rooms, key=lambda room: room.at_once),
        hardware=profile.hardware,
    )
    return replace(found, objective=_objective(found))


def _refuse_old(version: str) -> None:
    """Raises UsageError for a vLLM that does not report the acceptance of each step."""
    from specserve.vllm.facts import STEP_METRICS

    if not STEP_METRICS.at(version):
        first = next(era.first for era in STEP_METRICS.eras if era.value)
        raise UsageError(
            f"vLLM {version} does not report how many tokens each step accepted (`per_request_spec_decode_metrics`)",
            hint=(
                f"a tune needs vLLM {first} or later; with an older one, compare single values of K with "
                "`specserve bench`"
            ),
        )


def _points(
    request: TuneRequest, profile: Profile, files: tuple[str, ...], *, platform: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Workloads, temperatures and loads: as given, else as promised, else the defaults."""
    from specserve.measure.workloads.shipped import SHIPPED

    promised = [item for item in profile.expect if item.concurrency is not None]
    shipped = dict.fromkeys(item.workload for item in promised if item.workload in SHIPPED)
    temperatures = numbers(request.temperature, "--temperature", least=0.0, most=2.0) or tuple(
        dict.fromkeys(item.temperature for item in promised if item.temperature is not None)
    )
    given = whole_numbers(request.concurrency, "--concurrency", least=1, most=4096)
    usual = given or {item.concurrency for item in promised if item.concurrency} or _LOADS[platform]
    most = most_requests(profile)
    loads = tuple(sorted({load for load in usual if load <= most}))
    if not loads or (given and len(loads) < len(set(given))):
        raise too_many_requests(profile, most)
    return files or tuple(filter(None, shipped)) or _WORKLOADS, temperatures or (0.0,), loads


def most_requests(profile: Profile) -> int:
    """Requests that the server runs at the same time, given or assumed."""
    given = profile.engine.get("max_num_seqs")
    return given if isinstance(given, int) else MOST_REQUESTS


def _objective(plan: TunePlan) -> Objective:
    """As given; else goodput if a point that is measured has limits. Raises UsageError for goodput without limits."""
    from specserve.measure.tune.predict import limits_at

    is_limited = any(limits_at(plan.expect, point) is not None for point in plan.points)
    if plan.request.objective == "goodput" and not is_limited:
        raise UsageError(
            "none of the profile's promises limits TTFT or TPOT at a measured point",
            hint="add `expect: [{max_tpot_p99_ms: 30}]` to the profile, or use another `--objective`",
        )
    return plan.request.objective or ("goodput" if is_limited else "throughput")


def ideas(profile: Profile, request: TuneRequest, *, temperatures: Sequence[float]) -> list[Candidate]:
    """Candidates without launches, in order of use: the profile's own first. Raises UsageError for an unknown name."""
    own: dict[str, Any] = dict(profile.speculation.keys) if profile.speculation else {}
    if not own and not request.candidates:
        raise UsageError(
            f"`{profile.file}` does not speculate: there is nothing to tune",
            hint="add a `speculation` section, or name a draft with `--candidate MODEL`",
        )
    found = [Candidate(str(own["method"]), own, is_own=True), *_sampled(own, temperatures)] if own else []
    for name in dict.fromkeys(request.candidates):
        idea = _named(name, own, profile)
        if not any(without_k(idea.keys) == without_k(each.keys) for each in found):
            same = sum(each.name.rpartition("-")[0] == idea.name for each in found)
            is_taken = any(each.name == idea.name for each in found)  # two drafts may be called `final`
            found.append(replace(idea, name=f"{idea.name}-{same + 2}") if is_taken else idea)
    return found


def without_k(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A block without what says how many tokens are drafted."""
    without = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    return {name: value for name, value in keys.items() if name not in without}


def _sampled(own: Mapping[str, Any], temperatures: Sequence[float]) -> list[Candidate]:
    """The other way to sample drafts, if requests are sampled at all."""
    if max(temperatures) <= 0 or own["method"] not in _SAMPLED or own.get("use_heterogeneous_vocab"):
        return []
    other = "greedy" if own.get("draft_sample_method") == "probabilistic" else "probabilistic"
    return [Candidate(f"{own['method']}-{other}", {**own, "draft_sample_method": other})]


def _named(name: str, own: Mapping[str, Any], profile: Profile) -> Candidate:
    """An alternative of the profile, a method without a draft, or a draft model."""
    if name in profile.alternatives:
        return Candidate(name, dict(profile.alternatives[name].keys))
    if name in WITHOUT_DRAFT:
        return Candidate(name, WITHOUT_DRAFT[name])
    path = Path(name)
    if not path.is_dir() and "/" not in name:
        known = ", ".join(dict.fromkeys([*WITHOUT_DRAFT, *profile.alternatives]))
        raise UsageError(
            f"`--candidate {name}` is neither a method nor an alternative of the profile",
            hint=f"use {known}, or a draft model (ORG/NAME or a folder)",
        )
    keys = dict(own) if own.get("method") == "draft_model" else {"method": "draft_model"}
    keys.pop("revision", None)
    model = str(path.absolute()) if path.is_dir() else name
    return Candidate(f"draft-{path.name.lower()}", {**keys, "model": model})


def not_tried(profile: Profile, request: TuneRequest) -> list[CandidateInfo]:
    """Methods without a draft and alternatives that were not named, with how to add them."""
    own = profile.speculation.method if profile.speculation else None
    methods = {name: block.method for name, block in profile.alternatives.items()}
    for name in WITHOUT_DRAFT:
        if name != own and (name != "suffix" or find_spec("arctic_inference") is not None):
            methods.setdefault(name, name)
    return [
        CandidateInfo(name, method, left_out=f"needs another launch: `--candidate {name}`")
        for name, method in methods.items()
        if name not in request.candidates
    ]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the servers of one command."""

    request: TuneRequest
    profile: Profile
    launch: LaunchPlan
    """Of the profile itself, for vLLM's version and the platform."""
    starts: bool
    """Whether the servers are started, by the vLLM that is here."""
    notices: Notices

    def arm(self, name: str, keys: Mapping[str, Any] | None = None, *more: str) -> Variant:
        """One planned server, at its lock. `keys`: its `speculation`; None: without. `more`: settings."""
        block = [] if keys is None else [_as_setting(keys)]
        return plan_arm(
            self.request.profile,
            name,
            (*self.request.settings, *block, *more),
            check=False,
            starts=self.starts,
            notices=self.notices,
            baseline=keys is None,
        )

    def candidates(
        self, wanted: Sequence[Candidate], loads: Sequence[int]
    ) -> tuple[list[Candidate], list[CandidateInfo]]:
        """Those that can be launched, and what the rules object to in the others.

        Raises UsageError if that is all of them, or the profile's own.
        """
        found, left_out = [], []
        for idea in wanted:
            reason = self._objection(idea)
            if reason is None:
                found.append(self._planned(idea, loads))
            elif idea.is_own:
                raise UsageError(reason, hint="run `specserve check` for details")
            else:
                left_out.append(CandidateInfo(idea.name, str(idea.keys["method"]), left_out=reason))
        if not found:
            reasons = "; ".join(str(each.left_out) for each in left_out)
            raise UsageError("no candidate can be launched", hint=reasons)
        return found, left_out

    def _planned(self, idea: Candidate, loads: Sequence[int]) -> Candidate:
        """The candidate with its launches."""
        from specserve.memory.situation import runner_of

        most, method, engine = most_tokens(self.request, idea), str(idea.keys["method"]), self.profile.engine
        on_cpu, ranks = self.launch.platform == "cpu", engine.get("data_parallel_size")
        served = "v1" if on_cpu else runner_of(self.profile, self.launch.vllm, idea.keys)
        obstacle = ladder_obstacle(
            method,
            served,
            engines=ranks if isinstance(ranks, int) else 1,
            uses_graphs=not on_cpu and engine.get("enforce_eager") is not True,
        )
        keys: dict[str, Any] = {**without_k(idea.keys), "num_speculative_tokens": most}
        if obstacle is None:
            rungs = ladder(loads, most_tokens=most, most_requests=most_requests(self.profile))
            block = {**keys, "num_speculative_tokens_per_batch_size": ranges(rungs)}
            launches = [TuneLaunch(self.arm(idea.name, block, _DETAILED), most, rungs)]
        else:
            launches = [TuneLaunch(self.arm(idea.name, keys, _DETAILED), most)]
            if most > 2:  # far enough from K_max to tell cost by K
                few = self.arm(f"{idea.name}-k2", {**keys, "num_speculative_tokens": 2}, _DETAILED)
                launches.append(TuneLaunch(few, 2))
        return replace(idea, keys=keys, launches=tuple(launches), runner=served, ladder_obstacle=obstacle)

    def _objection(self, idea: Candidate) -> str | None:
        """The first error of the rules about a candidate as it would be served; None without one.

        If servers are started, of models, memory and machine too; those of the profile's own were examined before.
        """
        from specserve.checks.prepare import preflight
        from specserve.checks.run import examined
        from specserve.plan.launch import LaunchOptions
        from specserve.profile.load import load_profile

        path = self.request.profile
        keys = {**without_k(idea.keys), "num_speculative_tokens": most_tokens(self.request, idea)}
        settings = (*self.request.settings, _as_setting(keys))
        try:
            findings = examined(load_profile(path, settings=settings)).findings
            errors = [
                each
                for each in findings
                if each.severity is Severity.ERROR and not each.span.path.startswith("alternatives.")
            ]
            if not errors and self.starts and not idea.is_own:
                preflight(path, LaunchOptions(settings=settings), notices=self.notices)
        except CheckFailed as error:
            errors = list(error.findings)
            if not errors:
                return error.message
        except SpecserveError as error:
            return error.message
        return f"{errors[0].code}: {errors[0].message}" if errors else None


def chosen_arm(request: TuneRequest, speculation: Mapping[str, Any], *, notices: Notices) -> Variant:
    """The chosen server, as the profile would serve it."""
    settings = (*request.settings, _as_setting(speculation))
    return plan_arm(request.profile, TUNED, settings, check=False, starts=True, notices=notices)


def most_tokens(request: TuneRequest, idea: Candidate) -> int:
    """K_max: as given, else 8 or the profile's own K; at most its block for a head that drafts in blocks."""
    own = idea.keys.get("num_speculative_tokens")
    own = int(own) if isinstance(own, int | str) and str(own).isdigit() else 0
    if idea.keys["method"] in ("dflash", "dspark", "mtp") or idea.keys.get("parallel_drafting"):
        return min(request.most_tokens or own or 1, own or 1)
    return request.most_tokens or max(own, _MOST_TOKENS)


def _as_setting(keys: Mapping[str, Any]) -> str:
    """A block as `--set` takes it."""
    from specserve.vllm.arguments import jsonable

    return f"speculation={json.dumps(jsonable(keys))}"


def ladder_obstacle(method: str, runner: str, *, engines: int = 1, uses_graphs: bool = False) -> str | None:
    """Why one launch cannot measure several K, as a clause; None if it can."""
    reason = schedule_obstacle(method, runner, engines=engines)
    if reason is None and runner == "v1" and uses_graphs:
        return "a schedule makes vLLM's V1 runner use other CUDA graphs"
    return reason


_LEAST_BESIDE, _MOST_BESIDE = 3, 7


def ladder(loads: Collection[int], *, most_tokens: int, most_requests: int) -> dict[int, int]:
    """K by batch size for a launch that measures several K: of every load, and of a few batches beside them.

    The smallest load has K_max, which the acceptance of every K is read from. K falls with the load, as the best one
    does; batches beside the loads have a quite different K, so that cost by K and cost by load can be told apart. The
    largest batch has K = 0: what such a range costs while a draft is loaded.
    """
    found = {load: max(1, round(most_tokens / place)) for place, load in enumerate(sorted(loads), start=1)}
    largest = max(found)
    beside = dict.fromkeys(batch for load in found for batch in (load + 1, load - 1))
    near = [batch for batch in beside if 1 <= batch <= most_requests and batch not in found]
    further = range(largest + 2, min(largest + 1 + _LEAST_BESIDE, most_requests) + 1)
    kept = sorted([*near[:_MOST_BESIDE], *list(further)[: max(0, _LEAST_BESIDE - len(near))]])
    other = (1, most_tokens, max(1, most_tokens // 2))
    found |= {batch: other[place % len(other)] for place, batch in enumerate(kept)}
    if max(found) < most_requests:
        found[max(found) + 1] = 0
    return dict(sorted(found.items()))
