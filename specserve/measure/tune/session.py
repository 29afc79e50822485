"""One tune from what was prepared to its result: run in its directory, resumed, confirmed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import LaunchError, SpecserveError, TrafficError, UsageError
from specserve.measure.run import Outlet
from specserve.measure.tune.plan import TUNED, TuneRequest
from specserve.measure.tune.prepare import Found, Prepared, asked_json, open_directory

if TYPE_CHECKING:
    from specserve.measure.bench.rundir import RunDirectory
    from specserve.measure.tune.choose import Known
    from specserve.measure.tune.result import Choice, Confirmed, TuneResult
    from specserve.measure.tune.run import Tune


def refuse_unrunnable(asked: TuneRequest, *, write: bool) -> None:
    """Raises UsageError for a profile from stdin, and with `write` for one that could not be changed."""
    if asked.profile == "-":
        raise UsageError(
            "`tune` cannot read a profile from stdin because the run could not be resumed", hint="name a file"
        )
    if write:
        from specserve.measure.tune.result import refuse_unwritable

        refuse_unwritable(asked.profile, settings=asked.settings)


def run_tune(
    ready: Prepared, found: Found | None, *, output: str | None, outlet: Outlet
) -> tuple[TuneResult, Path, SpecserveError | None]:
    """The result, where its raw data lies, and why the choice could not be confirmed, if it could not.

    Raises UsageError if the limits leave no two launches, SpecserveError; what was measured stays.
    """
    from specserve.measure.tune.run import Tune
    from specserve.serve.signals import stop_on_signals

    if not ready.fitted.fits:
        raise UsageError(
            (
                "at least two launches are needed, one with speculation and one without, which is more than "
                f"{ready.fitted.exceeded}"
            ),
            hint="raise this limit; `--dry-run` shows how long each launch takes",
        )
    began, say = time.monotonic(), outlet.notices.say
    directory = open_directory(ready, found, output)
    with ExitStack() as stack:
        stack.enter_context(directory)
        is_told = found is not None and _is_told(ready, directory, notices=outlet.notices)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(outlet.open_view())
        names = ", ".join(each.name for each in ready.kept)
        say(
            f"measuring {len(ready.wish.points())} points on baseline, {names}; K up to "
            f"{ready.kept[0].most_tokens}"
        )
        say(f"run directory: {directory.path}")
        room, share = ready.room, ready.fitted.share
        tune = Tune(
            ready.wish, directory, view, stop, fits_two=room.at_once >= 2, slots=room.slots, share=share
        )
        try:
            with tune:
                result, failure = _tuned(ready, tune, began, is_told=is_told, outlet=outlet)
        except SpecserveError as error:
            if tune.passes:
                error.hint = error.hint or "the same command resumes from what was measured"
            raise
        finally:
            if not is_told:
                directory.spend(began)
    return result, directory.path, failure


def _is_told(ready: Prepared, directory: RunDirectory, *, notices: Notices) -> bool:
    """Whether the run is complete for this request, so that nothing is measured again; says which run it is."""
    found = Found(directory.path, directory.content)
    if found.answers(ready.asked):
        notices.say(f"already measured on {found.begun}; use `-o` with another folder to measure again")
        return True
    notices.say(f"resuming the run of {found.begun}; use `-o` with another folder to start over")
    directory.update(asked=asked_json(ready.asked), is_complete=False)
    return False


def unconfirmed(error: SpecserveError, *, write: bool) -> SpecserveError:
    """The same error as that of a command whose choice was to be confirmed."""
    rather = "`--no-confirm --write` writes it unconfirmed" if write else "`--no-confirm` does without"
    ways = f"the same command tries it again, {rather}"
    error.message = f"the choice could not be confirmed: {error.message}"
    error.hint = f"{error.hint}; {ways}" if error.hint else ways
    return error


def _tuned(
    ready: Prepared, tune: Tune, began: float, *, is_told: bool, outlet: Outlet
) -> tuple[TuneResult, SpecserveError | None]:
    """The result, and why the choice could not be confirmed. `is_told`: all was measured, nothing is started."""
    from specserve.measure.tune.choose import choose
    from specserve.measure.tune.outcome import outcome

    content = tune.directory.content
    if is_told:
        tune.versions = dict(content.get("versions", {}))
    else:
        tune.measure(ready.kept, confirms=ready.confirms)
    known = _known(ready, tune)
    if not known:
        raise TrafficError(
            "no configuration with speculation could be measured",
            hint="use longer answers (`--max-tokens`), or another workload",
        )
    choice = choose(known, objective=ready.wish.objective)
    said = list(content.get("said", ())) if is_told else []
    choice, confirmed, failure = _confirmed(
        ready, tune, known, choice, said=None if is_told else said, notices=outlet.notices
    )
    tune.notes = [*tune.notes, *said]
    spent_s = float(content.get("spent_s", 0.0)) + time.monotonic() - began
    duration_s = float(content.get("duration_s", spent_s)) if is_told else spent_s
    result = outcome(
        ready.wish,
        tune,
        known,
        choice=choice,
        confirmed=confirmed,
        fitted=ready.fitted,
        duration_s=duration_s,
    )
    for name, text in outlet.files(result).items():
        tune.directory.write(name, text)
    tune.directory.update(
        is_complete=failure is None,
        duration_s=duration_s,
        failed=tune.failed,
        said=said,
        versions=dict(result.versions),
    )
    return result, failure


def _known(ready: Prepared, tune: Tune) -> list[Known]:
    """What is known of each candidate that could be timed."""
    from specserve.measure.tune.predict import known_of

    known = []
    for number, each in enumerate(ready.kept, start=1):
        if not each.small and each.name not in tune.failed:
            following = ready.kept[number] if number < len(ready.kept) else None
            has_small = following is not None and following.small and following.name not in tune.failed
            launches = [number, number + 1] if has_small else [number]
            known.append(known_of(ready.wish, tune.passes, each, launches=launches))
    for found in known:
        if not found.rows:
            why = "no step could be timed, or the server did not report its steps"
            tune.note(f"{found.candidate.name}: {why}")
    return [found for found in known if found.rows]


def _confirmed(
    ready: Prepared,
    tune: Tune,
    known: Sequence[Known],
    choice: Choice,
    *,
    said: list[str] | None,
    notices: Notices,
) -> tuple[Choice, tuple[Confirmed, ...], SpecserveError | None]:
    """The choice once it was measured on other prompts, what was measured, and why it could not be.

    `said`: takes notes for the result; None if nothing is to be started.
    """
    from specserve.measure.tune.candidates import tuned
    from specserve.measure.tune.choose import after
    from specserve.measure.tune.outcome import confirmed_of

    if not choice.speculates or not ready.confirms:
        return choice, (), None
    launch = tune.launch_of(choice, first=len(ready.wish.candidates) + 1)
    failure = None
    if said is not None and tune.is_late():
        said.append("the budget was used up before the choice could be confirmed at every point")
    elif said is not None:
        server = tuned(ready.asked.profile, ready.asked, choice, name=TUNED, notices=notices)
        try:
            tune.confirm(server, launch=launch)
        except (LaunchError, TrafficError) as error:
            said.append(f"the choice could not be confirmed: {error.message}")
            failure = error
    mine = next(each for each in known if each.candidate.name == choice.candidate)
    confirmed = confirmed_of(ready.wish, tune.passes, choice, mine, launch=launch)
    return after(choice, confirmed, objective=ready.wish.objective), confirmed, failure
