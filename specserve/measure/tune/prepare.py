"""From a request to what is run: the plan of a tune, and the folder that keeps it or resumes it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.arms import host
from specserve.measure.bench.rundir import RUN, RunDirectory, create, new_place, read_run, resume
from specserve.measure.tune.plan import OPTIONS, TuneRequest
from specserve.measure.tune.schedule import between, most_requests, situation
from specserve.serve.files import state_folder

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
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions
    from specserve.profile.load import load_profile

    options = LaunchOptions(settings=asked.settings, port=0, starts=starts)
    _, plan = cleared(asked.profile, options, notices=notices)
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
            (
                f"vLLM {version} does not report how many tokens each step accepted "
                "(`per_request_spec_decode_metrics`)"
            ),
            hint=(
                f"a tune needs vLLM {first} or later; with an older one, compare single values of K with "
                "`specserve bench`"
            ),
        )


def _points(
    asked: TuneRequest, profile: Profile, names: tuple[str, ...], *, platform: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Workloads, temperatures and loads: as asked, else as promised, else the defaults."""
    from specserve.measure.values import numbers, whole_numbers
    from specserve.measure.workloads.load import SHIPPED

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
            (
                f"max_num_seqs is {most}{'' if isinstance(given, int) else ' (assumed)'}: at a higher "
                "concurrency, requests would wait"
            ),
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    return workloads, temperatures or (0.0,), kept


def _objective(asked: TuneRequest, wish: Wish) -> Any:
    """As asked for; else goodput if a point that is measured has limits. Raises UsageError for goodput without."""
    from specserve.measure.tune.choose import limits_at

    is_limited = any(limits_at(wish.expect, point) is not None for point in wish.points())
    if asked.objective == "goodput" and not is_limited:
        raise UsageError(
            "none of the profile's promises limits TTFT or TPOT at a measured point",
            hint="add `expect: [{max_tpot_p99_ms: 30}]` to the profile, or use another `--objective`",
        )
    return asked.objective or ("goodput" if is_limited else "throughput")


KIND = "tune"
_ANSWERS = ("objective", "confirm", "budget")
"""What is asked of passes that are the same for every answer."""
_WAY_OUT = "use another `-o`, or none"


@dataclass(frozen=True, slots=True)
class Found:
    """A run that is there."""

    path: Path
    content: Mapping[str, Any]
    """run.json."""

    @property
    def begun(self) -> str:
        """The day."""
        return str(self.content.get("created", ""))[:10]

    def answers(self, request: TuneRequest) -> bool:
        """Whether it is complete for this request, a budget that it ran over included: then nothing is started."""
        before, now = self.content.get("asked", {}), asked_json(request)
        return bool(self.content.get("is_complete")) and all(before.get(key) == now[key] for key in _ANSWERS)


def asked_json(request: TuneRequest) -> dict[str, Any]:
    """As run.json has it."""
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(request)))
    return content


def placed(
    asked: TuneRequest, *, output: str | None, starts: bool, notices: Notices
) -> tuple[Prepared, Found | None]:
    """What is to be done, and the run of the same command if there is one.

    Raises UsageError if `output` holds another run, and what `prepared` raises.
    """
    ready = prepared(asked, starts=starts, notices=notices)
    return ready, _found(ready, output)


def open_directory(ready: Prepared, found: Found | None, output: str | None) -> RunDirectory:
    """A new run, or the one of the same command."""
    if found is not None:
        return resume(found.path)
    wish = ready.wish
    content = {
        "kind": KIND,
        "digest": wish.digest,
        "name": wish.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host(platform_of_arms=wish.platform),
        "asked": asked_json(ready.asked),
        "spent_s": 0.0,
    }
    return create(Path(output) if output is not None else new_place(KIND, _stem(wish)), content)


def _found(ready: Prepared, output: str | None) -> Found | None:
    if output is not None:
        return _in(Path(output), ready)
    there = []
    for path in (state_folder() / KIND).glob(f"{_stem(ready.wish)}*"):
        content = _content(path)
        if content is not None and content.get("digest") == ready.wish.digest:
            there.append(Found(path, content))
    # of two that began in the same second, the one with the higher number at its end
    return max(
        there, key=lambda each: (each.content["created"], len(each.path.name), each.path.name), default=None
    )


def _in(path: Path, ready: Prepared) -> Found | None:
    """The run in a folder that was named. Raises UsageError if it is another one."""
    try:
        is_there = (path / RUN).exists()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(f"`{path}` cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not is_there:
        return None
    content = _content(path)
    if content is None:
        raise UsageError(f"`{path}` is not a run directory of `specserve tune`", hint=_WAY_OUT)
    if content.get("digest") != ready.wish.digest:
        raise UsageError(
            f"`{path}` contains a different run: {_difference(content, ready.asked)}", hint=_WAY_OUT
        )
    return Found(path, content)


def _difference(content: Mapping[str, Any], request: TuneRequest) -> str:
    """What was asked for otherwise; if nothing was, what else a run is told apart by."""
    before, now = content["asked"], asked_json(request)
    found = [
        f"`--{option}` was {_value(before[name])}"
        for name, option in OPTIONS.items()
        if name in before and name not in _ANSWERS and before[name] != now[name]
    ]
    profile = str(before.get("profile", request.profile))
    if os.path.normpath(profile) != os.path.normpath(request.profile):
        found.append(f"the profile was `{profile}`")
    return ", ".join(found) or "the profile, a model, a workload's file or vLLM has changed"


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value) or "not given"
    return "not given" if value is None else f"`{value}`"


def _stem(wish: Wish) -> str:
    return f"{wish.name}-{wish.digest[:8]}"


def _content(path: Path) -> dict[str, Any] | None:
    """run.json of a tune; None if there is none that can be read."""
    try:
        content = read_run(path)
    except UsageError:
        return None
    kinds = {"kind": str, "created": str, "asked": dict}
    is_whole = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
    return content if is_whole and content["kind"] == KIND else None
