"""`specserve convert`: an old command line, script or Python file to a profile."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import flag, text_option
from specserve.errors import FactError, UsageError, system_reason

if TYPE_CHECKING:
    from specserve.convert.convert import Converted
    from specserve.convert.given import EngineStart
    from specserve.diagnostics import Finding


def convert(
    source: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="A script, compose file or Python; `-` is stdin; or -- COMMAND…"),
    ],
    *,
    output: Annotated[
        str | None, text_option("PROFILE", "Where to write; default: stdout.", "--output", "-o")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite the profile.")] = False,
) -> None:
    """Make a profile of an old launch: a command, script or program.

    Read are `vllm serve`, api_server, `docker run`, compose, `LLM(…)` and SGLang's flags. What vLLM has no
    more is translated or left out, and each change is said: in the profile as a comment, on stderr as a
    list. Nothing of the source is executed, and no secret of it is written. Exit code 1: the source does not
    say a value, which is left out, or the profile has errors that no conversion could cure.

    \b
    specserve convert serve.sh -o my.yaml
    specserve convert offline.py
    specserve convert -- vllm serve org/model --speculative-model org/draft …
    """
    from specserve.convert.convert import converted
    from specserve.report.console import out

    target = None if output in (None, "-") else output
    if target and not force and os.path.lexists(target):
        raise UsageError(f"`{target}` is there already", hint="`--force` overwrites it")
    given, origin, others = _read(source)
    result = converted(given, origin=origin)
    if target:
        _write(target, result.text)
    else:
        out(result.text)
    bad = _tell(result, target=target, others=others)
    raise typer.Exit(1 if bad else 0)


def _read(source: list[str]) -> tuple[EngineStart, str, list[EngineStart]]:
    """The start to convert, the name of the text it comes from, and other starts in it."""
    from specserve.convert.reading import from_argv, read
    from specserve.convert.words import argv_words

    if len(source) > 1:
        return from_argv(argv_words(source)[1], folder=Path.cwd()), "a command line", []
    name = source[0]
    text = _text(name)
    file = "stdin" if name == "-" else name
    folder = Path.cwd() if name == "-" else Path(name).parent
    found = read(text, file=file, folder=folder)
    chosen = next((given for given in found if _speculates(given)), found[0])
    return chosen, Path(file).name, [given for given in found if given is not chosen]


def _speculates(given: EngineStart) -> bool:
    return any("spec" in name for name in given.settings)


def _text(name: str) -> str:
    from specserve.convert.reading import MAX_BYTES

    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason, hint = system_reason(error), None
        if isinstance(error, FileNotFoundError):
            reason += ", and as a command it starts no vLLM"
            hint = "name a script, or write `specserve convert -- vllm serve MODEL …`"
        raise FactError(f"cannot read `{name}`: {reason}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"`{name}` is larger than {MAX_BYTES:,} bytes, which no launch script is")
    return data.decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")


def _write(target: str, text: str) -> None:
    try:
        Path(target).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FactError(f"cannot write `{target}`: {system_reason(error)}") from error


def _tell(result: Converted, *, target: str | None, others: list[EngineStart]) -> bool:
    """The changes, what is still to be done, and what else was in the text, on stderr. True for errors."""
    from specserve.diagnostics import Severity
    from specserve.report.console import clean, say
    from specserve.report.findings import render

    for note in result.notes:
        place = f"line {note.line}: " if note.line > 1 else ""
        about = f"`{note.path}`: " if note.path else ""
        say(f"note: {clean(f'{place}{about}{note.text}')}")
    for other in others:
        say(f"note: line {other.place.line}: {clean(other.what)} starts another engine, which is left out")
    findings = list(result.unresolved) or _linted(result)  # without these values most rules would err
    if findings:
        say(render(findings))
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    what = f"`{clean(target)}`" if target else "the profile"
    still = f": {errors} error{'s' if errors > 1 else ''} left to cure" if errors else " lints"
    say(f"Converted with {len(result.notes)} change{'' if len(result.notes) == 1 else 's'}; {what}{still}")
    return bool(errors)


def _linted(result: Converted) -> list[Finding]:
    """What `specserve lint` would say of the text."""
    from specserve.checks.run import examined
    from specserve.convert.convert import FILE
    from specserve.profile.load import examine
    from specserve.profile.source import keep

    keep(FILE, result.text.encode())
    profile, problems = examine(FILE)
    return examined(profile, problems=problems)[0] if profile else problems
