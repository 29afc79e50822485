"""One tune for a command: planned, run in its directory, gone on with, told as it goes, written at the end."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.errors import LaunchError, SpecserveError, TrafficError, UsageError

if TYPE_CHECKING:
    from specserve.measure.bench.fit import Fit
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.measure.tune.budget import Fitted
    from specserve.measure.tune.result import Confirmed, TuneResult
    from specserve.measure.tune.run import Tune
    from specserve.measure.tune.wish import Candidate, Wish
    from specserve.profile.schema import Profile

_LOADS = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 16, 64)}
_WORKLOADS = ("chat", "code")
MOST_REQUESTS = 256
"""vLLM's usual `max_num_seqs`; larger accelerators have more, and no machine has less."""
_PROMPTS, _MAX_TOKENS = 12, {"cpu": 64, "cuda": 256}
_KIND = "tune"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    profile: str
    workloads: tuple[str, ...] = ()
    concurrency: str | None = None
    temperature: str | None = None
    objective: str | None = None
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    runner: str | None = None
    most_tokens: int | None = None
    prompts: int | None = None
    max_tokens: int | None = None
    budget: str | None = None
    most_launches: int | None = None
    confirm: bool = True
    seed: int = 0
    settings: tuple[str, ...] = ()
    alternative: str | None = None
    devices: str | None = None
    check: bool = True
    use_lock: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything before the first launch."""

    asked: Asked
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
        from specserve.measure.tune.wish import TUNED

        return self.asked.confirm and TUNED in self.fitted.kept


def prepared(asked: Asked, *, starts: bool) -> Prepared:
    """Candidates, points, launches. Raises ProfileError, CheckFailed, UsageError, FactError."""
    from specserve.cli.benchpoints import sources
    from specserve.cli.durations import seconds
    from specserve.cli.preflight import cleared
    from specserve.cli.prepare import prepare
    from specserve.cli.tunecandidates import arm, candidates
    from specserve.cli.tuneideas import ideas, situation, unasked
    from specserve.measure.bench.fit import fit
    from specserve.measure.tune.wish import BASELINE, Wish, fitted
    from specserve.profile.load import load_profile, with_alternative

    options: dict[str, Any] = {
        "settings": asked.settings, "port": 0, "devices": asked.devices, "alternative": asked.alternative,
        "check": asked.check, "use_lock": asked.use_lock,
    }  # fmt: skip
    if starts:
        profile, plan = cleared(asked.profile, **options)
    else:
        profile, plan = prepare(asked.profile, starts=False, **options)
    _refuse_old(plan.vllm)
    own = with_alternative(
        load_profile(asked.profile, settings=asked.settings), asked.alternative, baseline=False
    )
    names = sources(asked.workloads)
    workloads, temperatures, loads = _points(asked, own, tuple(names), platform=plan.platform)
    wanted = ideas(own, asked, temperatures=temperatures, plan=plan)
    found, left_out = candidates(own, asked, wanted, loads=loads, plan=plan, starts=starts)
    if not found:
        raise UsageError("no candidate can be launched", hint="; ".join(reason for _, _, reason in left_out))
    runner = situation(own, wanted[0].keys, plan=plan).runner
    files = {name: Path(text) for name, text in names.items() if Path(text).is_file()}
    marks = {name: sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    wish = Wish(
        name=profile.name,
        fingerprint=plan.fingerprint,
        baseline=arm(asked.profile, asked, name=BASELINE, baseline=True, starts=starts),
        candidates=tuple(found),
        left_out=(*left_out, *unasked(own, asked, plan=plan)),
        workloads=workloads,
        temperatures=temperatures,
        loads=loads,
        objective="throughput",
        runner=runner,
        platform=plan.platform,
        sources=names,
        expect=tuple(own.expect),
        vllm=plan.vllm,
        marks=marks,
        prompts=asked.prompts or _PROMPTS,
        max_tokens=asked.max_tokens or _MAX_TOKENS[plan.platform],
        budget_s=seconds(asked.budget, option="--budget", least_s=10.0) if asked.budget else None,
        most_launches=asked.most_launches,
        seed=asked.seed,
    )
    wish = dataclasses.replace(wish, objective=_objective(asked, wish))
    rooms = [fit([wish.baseline, each.arm]) for each in found]  # beside each of them the baseline stays up
    room = min(rooms, key=lambda each: each.at_once)
    return Prepared(asked, own, wish, room, fitted(wish, confirms=asked.confirm))


def _refuse_old(version: str) -> None:
    """Step by step, acceptance is told since 0.32."""
    from specserve.plan.memory.constants import minor

    if minor(version) < (0, 32):
        raise UsageError(
            f"vLLM {version} does not tell what each step accepted (`per_request_spec_decode_metrics`)",
            hint="a tune needs vLLM 0.32 or later; `specserve bench` compares single K with older ones",
        )


def _points(
    asked: Asked, profile: Profile, names: tuple[str, ...], *, platform: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
    """Workloads, temperatures and loads: as asked, else as promised, else the defaults."""
    from specserve.cli.lists import numbers, whole_numbers
    from specserve.measure.workloads.shipped import SHIPPED

    promised = [item for item in profile.expect if item.concurrency is not None]
    told = tuple(dict.fromkeys(item.workload for item in promised if item.workload in SHIPPED))
    workloads = names or tuple(name for name in told if name) or _WORKLOADS
    temperatures = numbers(asked.temperature, "--temperature", least=0.0, most=2.0) or tuple(
        dict.fromkeys(item.temperature for item in promised if item.temperature is not None)
    )
    loads = whole_numbers(asked.concurrency, "--concurrency", least=1, most=4096) or tuple(
        sorted({item.concurrency for item in promised if item.concurrency is not None})
    )
    told = profile.engine.get("max_num_seqs")
    most = told if isinstance(told, int) else MOST_REQUESTS
    usual = loads or _LOADS[platform]
    kept = tuple(sorted({load for load in usual if load <= most}))
    if not kept or (asked.concurrency and len(kept) < len(set(usual))):
        raise UsageError(
            f"max_num_seqs is {most}{'' if isinstance(told, int) else ' (assumed)'}: "
            "more requests at once would wait",
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    return workloads, temperatures or (0.0,), kept


def _objective(asked: Asked, wish: Wish) -> Any:
    """As asked for; else goodput where a point that is measured has limits. Raises UsageError for goodput without."""
    from specserve.measure.tune.limits import limits_at

    is_limited = any(limits_at(wish.expect, point) is not None for point in wish.points())
    if asked.objective == "goodput" and not is_limited:
        raise UsageError(
            "no promise of the profile limits TTFT or TPOT at a point that is measured",
            hint="`expect: [{max_tpot_p99_ms: 30}]` in the profile, or another `--objective`",
        )
    return asked.objective or ("goodput" if is_limited else "throughput")


def run(
    asked: Asked,
    *,
    output: str | None,
    anew: bool,
    dry_run: bool,
    write: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """The whole command. Raises SpecserveError; what was measured stays."""
    if asked.profile == "-":
        raise UsageError("a tune is not read from stdin: it could not be gone on with", hint="name a file")
    if write:
        from specserve.cli.tunewrite import refuse_unwritable

        refuse_unwritable(asked.profile, settings=asked.settings)
    ready = prepared(asked, starts=not dry_run)
    if dry_run:
        from specserve.report.console import out
        from specserve.report.tuneplan import plan_json, plan_text

        out((plan_json if as_json else plan_text)(ready))
        return
    if not ready.fitted.fits:
        raise UsageError(
            "two launches are needed at least, one without speculation and one with it",
            hint="raise `--budget` or `--max-launches`; `--dry-run` tells what each takes",
        )
    result, path = _measured(ready, output=output, anew=anew)
    _show(result, path, explain=explain, as_json=as_json)
    if write:
        from specserve.cli.tunewrite import write_choice

        write_choice(asked.profile, result, settings=asked.settings)


def _measured(ready: Prepared, *, output: str | None, anew: bool) -> tuple[TuneResult, Path]:
    from specserve.measure.tune.run import Tune
    from specserve.report.benchprogress import BenchView
    from specserve.report.console import in_one_line, say
    from specserve.serve.stop import stop_on_signals

    began = time.monotonic()
    directory = _directory(ready, output, anew=anew)
    with ExitStack() as stack:
        stack.enter_context(directory)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(BenchView())
        names = ", ".join(each.name for each in ready.kept)
        say(f"{len(ready.wish.points())} points on baseline, {names}; K up to {ready.kept[0].most_tokens}")
        say(f"run directory: {in_one_line(str(directory.path))}")
        tune = Tune(
            ready.wish,
            directory,
            view,
            stop,
            fits_two=ready.room.at_once >= 2,
            slots=ready.room.slots,
            share=ready.fitted.share,
        )
        try:
            with tune:
                result = _tuned(ready, tune, began)
        except SpecserveError as error:
            if tune.passes:
                error.hint = error.hint or "the same command goes on with what was measured"
            raise
        finally:
            spent_s = directory.content.get("spent_s", 0.0) + time.monotonic() - began
            directory.update(spent_s=spent_s)
    return result, directory.path


def _tuned(ready: Prepared, tune: Tune, began: float) -> TuneResult:
    from specserve.measure.tune.assemble import confirmed_of, known_of
    from specserve.measure.tune.choose import after, choose
    from specserve.measure.tune.outcome import outcome
    from specserve.measure.tune.wish import TUNED
    from specserve.report.tunefile import as_json_text
    from specserve.report.tunehtml import tune_html

    tune.measure(ready.kept, confirms=ready.confirms)
    known = []
    for number, each in enumerate(ready.kept, start=1):
        if not each.small and each.name not in tune.failed:
            following = ready.kept[number] if number < len(ready.kept) else None
            launches = [number, number + 1] if following is not None and following.small else [number]
            known.append(known_of(ready.wish, tune.passes, each, launches=launches))
    known = [each for each in known if each.rows]
    if not known:
        raise TrafficError(
            "nothing that speculates could be timed, so nothing can be said",
            hint="longer answers (`--max-tokens`), or another workload",
        )
    choice = choose([each.ready for each in known], objective=ready.wish.objective)
    confirmed: tuple[Confirmed, ...] = ()
    is_whole = True
    if tune.is_late() and ready.confirms and not tune.directory.content.get("is_complete"):
        tune.notes.append("the budget was used up before the choice could be confirmed")
    elif choice.speculates and ready.confirms and choice.speculation is not None:
        from specserve.cli.tunecandidates import tuned

        launch = tune.launch_of(choice, first=len(ready.kept) + 1)
        server = tuned(ready.asked.profile, ready.asked, choice, name=TUNED)
        try:
            tune.confirm(server, launch=launch)
        except (LaunchError, TrafficError) as error:
            is_whole = False
            tune.notes.append(f"the choice could not be confirmed: {error.message}")
        mine = next(each for each in known if each.candidate.name == choice.candidate)
        confirmed = confirmed_of(ready.wish, tune.passes, choice, mine, launch=launch)
        choice = after(choice, confirmed)
    spent_s = tune.directory.content.get("spent_s", 0.0) + time.monotonic() - began
    result = outcome(
        ready.wish, tune, known, choice=choice, confirmed=confirmed, fitted=ready.fitted, duration_s=spent_s
    )
    tune.directory.write("result.json", as_json_text(result))
    tune.directory.write("report.html", tune_html(result))
    tune.directory.update(is_complete=is_whole)
    return result


def _directory(ready: Prepared, output: str | None, *, anew: bool) -> RunDirectory:
    """A new run, or the one of the same command: where that is complete, nothing is measured again."""
    from specserve.measure.bench.rundir import create, resume
    from specserve.report.console import say
    from specserve.serve.statefolder import state_folder

    digest = ready.wish.digest
    stem = f"{ready.wish.name}-{ready.wish.fingerprint[:8]}-{digest[:8]}"
    path = Path(output) if output is not None else state_folder() / "tune" / stem
    number = 1
    while (path / "run.json").exists():
        found = resume(path)
        is_same = (found.content.get("kind"), found.content.get("digest")) == (_KIND, digest)
        if is_same and not anew:
            if found.content.get("is_complete"):
                say(f"measured on {found.content['created'][:10]} already; `--fresh` measures anew")
            return found
        found.__exit__()
        if output is not None:
            raise UsageError(f"`{path}` holds a run already", hint="another `-o`, or none")
        number += 1
        path = path.with_name(f"{stem}-{number}")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"kind": _KIND, "digest": digest, "name": ready.wish.name, "created": created}
    return create(path, {**content, "asked": dataclasses.asdict(ready.asked), "spent_s": 0.0})


def _show(result: TuneResult, path: Path, *, explain: bool, as_json: bool) -> None:
    from specserve.report.console import out, say
    from specserve.report.tune import text
    from specserve.report.tunefile import as_json_text

    out(as_json_text(result) if as_json else text(result, explain=explain))
    say(f"raw data, logs, result.json and report.html: {path}")
