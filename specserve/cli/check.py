"""`specserve check`: every rule, with the models, the memory and the machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from specserve.checks.gather import CheckOptions
from specserve.cli import judge
from specserve.cli.judge import FindingsFormat as Format
from specserve.cli.options import Assume, NoLock, Settings, flag, text_option
from specserve.diagnostics import Finding, Report, Severity
from specserve.profile.schema import Profile
from specserve.report.console import clean, is_terminal, mute, out, say
from specserve.report.findings import StderrNotices

_QUIET_S = 2.0
"""A check that is done by then says nothing on the way, in a pipe."""


def check(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILE…", help="Profiles, folders of them, `-` for stdin; or -- and a vLLM command."
        ),
    ],
    *,
    assume: Assume = None,
    offline: Annotated[bool, flag("--offline", "Cache, directories and lock only.")] = False,
    locked: Annotated[bool, flag("--locked", "Profile and lock, nothing else.")] = False,
    no_lock: NoLock = False,
    strict: Annotated[bool, flag("--strict", "Warnings and skipped groups fail too.")] = False,
    vllm: Annotated[str | None, text_option("VERSION", "What this vLLM would refuse or change.")] = None,
    ask_vllm: Annotated[
        bool,
        flag(
            "--ask-vllm",
            "Let vLLM's own code judge the launch and compute the memory (about 10 s, then cached).",
        ),
    ] = False,
    vllm_source: Annotated[
        Path | None,
        text_option(
            "WHEEL|DIR",
            "The same by the vLLM in a wheel, or in a folder with its files; nothing is installed.",
        ),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            show_default=False,
            help="How findings are written; default: text, and github in a job of GitHub Actions.",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Prove before the launch that the pair agrees and fits.

    Judged are the profile, tokenizers, models, memory, hardware and this host. Models are read from
    directories, the Hub cache or the Hub: configuration, tokenizer files and headers, never a weight. What
    did not run is said, and is never ok. Exit code 1: errors were found; 2: a model is not there or not
    shown, or the Hub does not answer. With --offline what is not cached is skipped: only --strict fails.

    \b
    specserve check configs/demo.yaml
    specserve check configs/llama70b-8b.yaml --assume 4xH100-80GB
    specserve check my.yaml --offline --strict --format json
    specserve check -- vllm serve ./llama --speculative-config '{…}'
    """
    from specserve.hardware.accelerators import assume as machine_of

    if ask_vllm or vllm_source is not None:
        from specserve.checks.oracle import vllm_to_ask

        asked = vllm_to_ask(vllm_source)  # a folder without a vLLM is an error before anything is checked
        vllm = vllm or (asked.version if vllm_source is not None else None)
    notices = StderrNotices()
    wanted = CheckOptions(
        offline=offline,
        locked=locked,
        no_lock=no_lock,
        machine=machine_of(assume) if assume else None,
        ask_vllm="always" if ask_vllm or vllm_source else "if_kept",
        vllm_source=vllm_source,
        version=_minor(vllm) if vllm else None,
        tell=notices.progress,
    )
    report = run(paths, wanted=wanted, settings=settings or ())
    notices.progress("")
    try:
        show(report, format=format)
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline
    raise typer.Exit(exit_code(report, strict=strict))


def run(paths: Iterable[str], *, wanted: CheckOptions, settings: Iterable[str] = ()) -> Report:
    """The check of files, folders and stdin. Raises UsageError where there is no profile."""
    from specserve.checks.check import check as check_profiles

    return check_profiles(_examined(list(paths), settings=tuple(settings)), wanted=wanted)


def _examined(
    paths: list[str], *, settings: tuple[str, ...]
) -> Iterable[tuple[str, Profile | None, list[Finding]]]:
    from specserve.profile.load import examine_partial

    files = judge.named_profiles(paths)
    live, started_s = is_terminal(sys.stderr), time.monotonic()
    for number, file in enumerate(files, start=1):
        if not live and time.monotonic() - started_s > _QUIET_S:
            say(f"checking {clean(file)}, {number} of {len(files)}")
        yield (file, *examine_partial(file, settings=settings))


def show(report: Report, *, format: Format | None) -> None:
    """Findings and figures to stdout, the sum to stderr."""
    from specserve.report.check import check_text

    format = format or judge.default_format()
    if format is Format.TEXT:
        out(check_text(report))
        judge.tell(report, explain=True)
    else:
        judge.show(report, format=format)


def exit_code(report: Report, *, strict: bool) -> int:
    """2 where a model of the Hub could not be read, 1 for errors (and warnings and skips, if strict), else 0."""
    from specserve.checks.check import Checked

    if any(isinstance(verdict, Checked) and verdict.undone for verdict in report.verdicts):
        return 2
    bad = report.count(Severity.ERROR)
    if strict:
        bad += report.count(Severity.WARNING) + len(report.skipped)
    return 1 if bad else 0


def _minor(version: str) -> str:
    from specserve.vllm.versions import table

    known = table(version)
    if not known.exact:
        say(f"vLLM {clean(version)} is newer than all that specserve knows: judged as {known.minor}")
    return known.minor
