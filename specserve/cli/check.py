"""`specserve lint` and `check`: profiles judged on their own, and with their models, this machine and vLLM."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from specserve.cli import judge
from specserve.cli.judge import FindingsFormat as Format
from specserve.cli.options import Assume, Locked, Settings, flag, text_option
from specserve.diagnostics import Finding, Report, Severity
from specserve.profile.schema import Profile
from specserve.report.console import escaped, is_terminal, mute, out, say


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…",
            help="Profile files, folders, quoted globs, `-` for stdin, or `--` followed by a vLLM command.",
        ),
    ],
    *,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format (default: text; in GitHub Actions: github).",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, flag("--strict", "Also fail for warnings.")] = False,
    pick: Annotated[
        bool, flag("--pick", "Skip named files that are not profiles (in folders they are always skipped).")
    ] = False,
    stdin_filename: Annotated[
        str | None,
        text_option(
            "FILE",
            "Name to show for stdin; relative paths in the profile start from its folder.",
            "--stdin-filename",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Judge profiles on their own: no network, no GPU, no vLLM.

    lint is fast enough for CI and for every commit. In a folder, every *.yaml and *.yml file with a top-level `target`
    or `extends` is a profile. A file whose name starts with `_` is a base: it is judged through the profiles that
    extend it. A file that you name always counts as a profile, unless you give --pick. Exit code 1: errors were found.

    \b
    specserve lint configs/
    specserve lint 'deploy/**/*.yaml' --format sarif > specserve.sarif
    specserve lint my.yaml --format json
    specserve lint -- vllm serve org/model --speculative-config '{…}'
    """
    code = judge.judge(
        paths,
        format=format,
        strict=strict,
        pick=pick,
        stdin_filename=stdin_filename,
        settings=settings or (),
    )
    raise typer.Exit(code)


_QUIET_S = 2.0
"""A check that is done by then says nothing on the way, in a pipe."""


def check(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILE…",
            help="Profile files or folders of them, `-` for stdin, or `--` followed by a vLLM command.",
        ),
    ],
    *,
    assume: Assume = None,
    offline: Annotated[
        bool, flag("--offline", "Read no network: only directories, the Hub cache and locks.")
    ] = False,
    locked: Locked = None,
    strict: Annotated[bool, flag("--strict", "Also fail for warnings.")] = False,
    complete: Annotated[bool, flag("--complete", "Also fail for skipped checks.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Show what the answer rests on: rules, memory, configuration."),
    ] = False,
    vllm: Annotated[
        str | None,
        text_option(
            "VERSION|installed|PATH",
            (
                "Judge for this vLLM version. `installed`, or a wheel or folder of vLLM, which is not installed: let "
                "its own code judge the launch and compute the memory, too (about 10 s, then cached)."
            ),
            "--vllm",
        ),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            show_default=False,
            help="Output format (default: text; in GitHub Actions: github).",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Prove before the launch that target and draft agree and fit in memory.

    check judges the profile, tokenizers, models, memory, hardware and this host. It reads configurations, tokenizer
    files and tensor headers from directories, the Hub cache or the Hub, but no weights. What it could not check is
    listed as skipped and never counts as ok.

    Exit codes: 1 if errors were found (with --strict also for warnings, with --complete also for skipped checks); 2 if
    a model does not exist, if it is gated, or if the Hub does not answer. If specserve ships a copy of the model's
    configuration, the Hub need not answer: check uses the copy, and what it cannot check counts as skipped. With
    --offline, a model that is not on this machine also counts as skipped.

    \b
    specserve check configs/demo.yaml
    specserve check configs/llama70b-8b.yaml --assume 4xH100-80GB
    specserve check my.yaml --offline --strict --format json
    specserve check my.yaml --complete
    specserve check -- vllm serve ./llama --speculative-config '{…}'
    """
    from specserve.checks.check import check as check_profiles
    from specserve.checks.gather import CheckOptions
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.report.findings import StderrNotices
    from specserve.serve.detached.launch import running_records

    is_asked, source = False, None
    if vllm is not None and not vllm[:1].isdigit():
        from specserve.checks.oracle import vllm_to_ask

        is_asked, source = True, Path(vllm) if vllm != "installed" else None
        asked = vllm_to_ask(source)  # a folder without a vLLM is an error before anything is checked
        vllm = asked.version if source else None
    notices = StderrNotices()
    wanted = CheckOptions(
        offline=offline,
        locked=locked,
        machine=machine_of(assume) if assume else None,
        ask_vllm="always" if is_asked else "if_kept",
        vllm_source=source,
        version=_minor(vllm) if vllm else None,
        servers={record.port: record.name for record in running_records()},
        tell=notices.progress,
    )
    report = check_profiles(_examined(paths, tuple(settings or ())), wanted=wanted)
    notices.progress("")
    try:
        _show(report, format or judge.default_format(), is_verbose=verbose)
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline
    # with --assume, this host is none of the profile's business
    skipped = [item for item in report.skipped if assume is None or item.group != "host"]
    raise typer.Exit(_exit_code(report, strict=strict, is_incomplete=complete and bool(skipped)))


def _examined(
    paths: list[str], settings: tuple[str, ...]
) -> Iterable[tuple[str, Profile | None, list[Finding]]]:
    from specserve.profile.load import examine_partial

    files = judge.named_profiles(paths)
    live, started_s = is_terminal(sys.stderr), time.monotonic()
    for number, file in enumerate(files, start=1):
        if not live and time.monotonic() - started_s > _QUIET_S:
            say(f"checking {escaped(file)}, {number} of {len(files)}")
        yield (file, *examine_partial(file, settings=settings))


def _show(report: Report, format: Format, *, is_verbose: bool) -> None:
    """Findings and figures to stdout, the sum to stderr."""
    from specserve.report.check import check_text

    if format is not Format.TEXT:
        judge.show(report, format=format)
        return
    out(check_text(report, is_verbose=is_verbose))
    judge.tell(report, explain=True)
    if undone := _undone(report):
        say(f"exit code 2: `{escaped(undone)}` was not checked, and nothing is published about it")
    elif any(item.cause == "unreachable" for item in report.skipped):
        say("the Hub did not answer; with `--complete` this is exit code 1")


def _undone(report: Report) -> str | None:
    """The path of a model that should have been read and was not; None if there is none."""
    from specserve.checks.check import Checked

    found = [verdict.undone for verdict in report.verdicts if isinstance(verdict, Checked)]
    return next((item.path for item in found if item), None)


def _exit_code(report: Report, *, strict: bool, is_incomplete: bool) -> int:
    """2 if a model of the Hub could not be read, 1 for errors (strict: warnings), or if it is incomplete, else 0."""
    if _undone(report):
        return 2
    if report.count(Severity.ERROR):
        return 1
    if strict and report.count(Severity.WARNING):
        say("exit code 1: warnings count with `--strict`")
        return 1
    if is_incomplete:
        say("exit code 1: skipped rules count with `--complete`")
        return 1
    return 0


def _minor(version: str) -> str:
    from specserve.vllm.versions import table

    known = table(version)
    if not known.exact:
        say(
            f"vLLM {escaped(version)} is newer than every version that specserve knows, so it is judged as "
            f"{known.minor}"
        )
    return known.minor
