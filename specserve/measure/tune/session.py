"""One tune from what was prepared to its result: run in its directory, gone on with, confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import LaunchError, SpecserveError, TrafficError, UsageError
from specserve.measure.tune.plan import TuneRequest
from specserve.measure.tune.prepare import Prepared
from specserve.measure.tune.rundir import KIND, Found, asked_json, is_answered, new_place

if TYPE_CHECKING:
    from specserve.measure.bench.rundir import News, RunDirectory
    from specserve.measure.tune.choose import Known
    from specserve.measure.tune.result import Choice, Confirmed, TuneResult
    from specserve.measure.tune.run import Tune


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a run says what happens, and how its result is written."""

    notices: Notices
    open_view: Callable[[], AbstractContextManager[Callable[[News], None]]]
    files: Callable[[TuneResult], Mapping[str, str]]
    """The files of a result by name."""


def refuse_unrunnable(asked: TuneRequest, *, write: bool) -> None:
    """Raises UsageError for a profile from stdin, and with `write` for one that could not be changed."""
    if asked.profile == "-":
        raise UsageError("a tune is not read from stdin: it could not be gone on with", hint="name a file")
    if write:
        from specserve.measure.tune.write import refuse_unwritable

        refuse_unwritable(asked.profile, settings=asked.settings)


def run_tune(
    ready: Prepared, found: Found | None, *, output: str | None, outlet: Outlet
) -> tuple[TuneResult, Path, SpecserveError | None]:
    """The result, where its raw data lies, and why the choice could not be confirmed, where it could not.

    Raises UsageError if the limits leave no two launches, SpecserveError; what was measured stays.
    """
    if not ready.fitted.fits:
        raise UsageError(
            "two launches are needed at least, one without speculation and one with it, which is more than "
            f"{ready.fitted.exceeded}",
            hint="raise it; `--dry-run` tells what each takes",
        )
    return _measured(ready, found, output=output, outlet=outlet)


def _measured(
    ready: Prepared, found: Found | None, *, output: str | None, outlet: Outlet
) -> tuple[TuneResult, Path, SpecserveError | None]:
    from specserve.measure.tune.run import Tune
    from specserve.serve.signals import stop_on_signals

    began = time.monotonic()
    directory, say = open_directory(ready, found, output), outlet.notices.say
    with ExitStack() as stack:
        stack.enter_context(directory)
        is_told = found is not None and _is_told(ready, directory, notices=outlet.notices)
        stop = stack.enter_context(stop_on_signals())
        view = stack.enter_context(outlet.open_view())
        names = ", ".join(each.name for each in ready.kept)
        say(f"{len(ready.wish.points())} points on baseline, {names}; K up to {ready.kept[0].most_tokens}")
        say(f"run directory: {directory.path}")
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
                result, failure = _tuned(ready, tune, began, is_told=is_told, outlet=outlet)
        except SpecserveError as error:
            if tune.passes:
                error.hint = error.hint or "the same command goes on with what was measured"
            raise
        finally:
            if not is_told:
                directory.update(spent_s=_spent_s(directory, began))
    return result, directory.path, failure


def _spent_s(directory: RunDirectory, began: float) -> float:
    """By all commands that measured in this directory."""
    return float(directory.content.get("spent_s", 0.0)) + time.monotonic() - began


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

    if is_told:
        tune.recall()
    else:
        tune.measure(ready.kept, confirms=ready.confirms)
    known = _known(ready, tune)
    if not known:
        raise TrafficError(
            "nothing that speculates could be timed, so nothing can be said",
            hint="longer answers (`--max-tokens`), or another workload",
        )
    choice = choose(known, objective=ready.wish.objective)
    choice, confirmed, failure = _confirmed(
        ready, tune, known, choice, is_told=is_told, notices=outlet.notices
    )
    spent_s = _spent_s(tune.directory, began)
    duration_s = float(tune.directory.content.get("duration_s", spent_s)) if is_told else spent_s
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
        notes=tune.notes,
        versions=dict(result.versions),
        host=dict(result.host),
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
    return [each for each in known if each.rows]


def _confirmed(
    ready: Prepared,
    tune: Tune,
    known: Sequence[Known],
    choice: Choice,
    *,
    is_told: bool,
    notices: Notices,
) -> tuple[Choice, tuple[Confirmed, ...], SpecserveError | None]:
    """The choice once it was measured on other prompts, what was measured, and why it could not be."""
    from specserve.measure.tune.choose import after
    from specserve.measure.tune.outcome import confirmed_of

    if not choice.speculates or not ready.confirms:
        return choice, (), None
    launch = tune.launch_of(choice, first=len(ready.wish.candidates) + 1)
    failure = None if is_told else _confirm(ready, tune, choice, launch, notices)
    mine = next(each for each in known if each.candidate.name == choice.candidate)
    confirmed = confirmed_of(ready.wish, tune.passes, choice, mine, launch=launch)
    return after(choice, confirmed, objective=ready.wish.objective), confirmed, failure


def _confirm(
    ready: Prepared, tune: Tune, choice: Choice, launch: int, notices: Notices
) -> SpecserveError | None:
    """Launch the choice beside the server without speculation; why that failed."""
    from specserve.measure.tune.candidates import tuned
    from specserve.measure.tune.plan import TUNED

    if tune.is_late():
        tune.notes.append("the budget was used up before the choice could be confirmed at every point")
        return None
    server = tuned(ready.asked.profile, ready.asked, choice, name=TUNED, notices=notices)
    try:
        tune.confirm(server, launch=launch)
    except (LaunchError, TrafficError) as error:
        tune.notes.append(f"the choice could not be confirmed: {error.message}")
        return error
    return None


def open_directory(ready: Prepared, found: Found | None, output: str | None) -> RunDirectory:
    """A new run, or the one of the same command."""
    from specserve.measure.bench.rundir import create, resume

    if found is not None:
        return resume(found.path)
    wish = ready.wish
    content = {
        "kind": KIND,
        "digest": wish.digest,
        "layout": wish.layout,
        "most_tokens": {each.name: each.most_tokens for each in wish.candidates if not each.small},
        "name": wish.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "asked": asked_json(ready.asked),
        "spent_s": 0.0,
    }
    return create(new_place(wish, output), content)


def _is_told(ready: Prepared, directory: RunDirectory, *, notices: Notices) -> bool:
    """Whether the run is complete for what is asked, so that nothing is measured again; says which run it is."""
    begun = str(directory.content["created"])[:10]
    if is_answered(directory.content, ready.asked):
        notices.say(f"measured on {begun} already; `-o` with another folder measures again")
        return True
    notices.say(f"goes on with the run of {begun}; `-o` with another folder starts over")
    directory.update(asked=asked_json(ready.asked), is_complete=False)
    return False
