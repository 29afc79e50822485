"""One tune for a command: planned, run in its directory, gone on with, told as it goes, written at the end."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.cli.tuneprepare import Asked, Prepared, prepared
from specserve.errors import LaunchError, SpecserveError, TrafficError, UsageError

if TYPE_CHECKING:
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.measure.tune.result import Confirmed, TuneResult
    from specserve.measure.tune.run import Tune

_KIND = "tune"


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
