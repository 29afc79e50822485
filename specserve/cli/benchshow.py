"""Runs of `bench` that are there already: shown again, compared, given to others. Measures nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    import typer

    from specserve.measure.bench.result import Result


_ALONE = "`--show` and `--compare` measure nothing: one of them, and runs, is all they take"


def refuse_others(context: typer.Context, *, allowed: Collection[str]) -> None:
    """Raises UsageError where the command line gives another parameter: it would be passed over in silence."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise UsageError(_ALONE, hint=f"without `{parameter.opts[0]}`")


def shown(
    run: str | None,
    two: tuple[str, str] | None,
    *,
    share: str | None,
    format: str,
) -> None:
    """`--show` or `--compare`. Raises UsageError for both."""
    if (run is not None) == (two is not None):
        raise UsageError(_ALONE)
    if two is not None and share is not None:
        raise UsageError(
            "`--share` gives one result away, and `--compare` has two", hint="`--show RUN --share FILE`"
        )
    if two is not None:
        compare(two, format=format)
    elif run is not None:
        show(run, format=format, share=share)


def show(place: str, *, format: str, share: str | None) -> None:
    """A run's report once more. Raises FactError where there is none."""
    from specserve.measure.bench.result import read_result

    result = read_result(Path(place))
    if share is not None:
        give(result, share)
    write(result, format=format)


def write(result: Result, *, format: str) -> None:
    """The report to stdout."""
    from specserve.report.bench import rendered
    from specserve.report.console import out

    out(rendered(result, form=format))


def compare(places: tuple[str, str], *, format: str) -> None:
    """Two runs side by side. Raises FactError where one is none."""
    from specserve.measure.bench.comparison import compare as compared_runs
    from specserve.measure.bench.result import read_result
    from specserve.report.benchcompare import compared
    from specserve.report.console import out

    old, new = (read_result(Path(place)) for place in places)
    out(compared(compared_runs(old, new), form=format))


def give(result: Result, place: str) -> None:
    """Write what may be given to others. Raises UsageError where a file is there, FactError for another reason."""
    from specserve.measure.bench.sharing import text
    from specserve.report.console import say

    refuse_taken(place)
    try:
        with Path(place).open("x", encoding="utf-8") as file:
            file.write(text(result))
    except (OSError, ValueError) as error:
        raise FactError(f"cannot write `{place}`: {getattr(error, 'strerror', None) or error}") from error
    say(
        f"`{place}`: figures, versions and machine, no prompts, paths or addresses; look at it before you give it away"
    )


def refuse_taken(place: str) -> None:
    """Raises UsageError where something is there already: told before an hour of measuring, not after it."""
    if Path(place).exists():
        raise UsageError(f"`{place}` exists already", hint="`--share` writes a new file")
