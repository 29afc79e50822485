"""`specserve lint` and `check`: profiles alone, and with their models, the machine and vLLM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specserve.cli.options import Assume, Locked, Settings, Strict, Verbose, flag, text_option
from specserve.diagnostics import Report, Severity
from specserve.report.console import escaped, is_terminal, mute, out, say, styled


class FindingsFormat(StrEnum):
    """How findings are written."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


_FORMAT = "Output format (default: text; in GitHub Actions: github)."
Format = Annotated[
    FindingsFormat | None, typer.Option("--format", show_default=False, help=_FORMAT)
]
_PICK = "Skip named files that are not profiles (in folders they are always skipped)."
_STDIN = "Name to show for stdin; relative paths in the profile start from its folder."
_VLLM = (
    "Judge for this vLLM version. `installed`, or a wheel or folder of vLLM, which is not"
    " installed: let its own code judge the launch and compute the memory, too (about 10 s, then"
    " cached)."
)


def lint(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH…",
            help="Profile files, folders, quoted globs, `-` for stdin, or `--` followed by a vLLM"
            " command.",
        ),
    ],
    *,
    format: Format = None,
    strict: Strict = False,
    pick: Annotated[bool, flag("--pick", _PICK)] = False,
    stdin_filename: Annotated[str | None, text_option("FILE", _STDIN, "--stdin-filename")] = None,
    settings: Settings = None,
) -> None:
    """Judge profiles on their own: no network, no GPU, no vLLM.

    lint is fast enough for CI and for every commit. In a folder, every *.yaml and *.yml file with a
    top-level `target` or `extends` is a profile. A file whose name starts with `_` is a base: it is
    judged through the profiles that extend it. A file that you name always counts as a profile,
    unless you give --pick. Exit code 1: errors were found.

    \b
    specserve lint configs/
    specserve lint 'deploy/**/*.yaml' --format sarif > specserve.sarif
    specserve lint my.yaml --format json
    specserve lint -- vllm serve org/model --speculative-config '{…}'
    """
    from specserve.checks import run

    files = named_profiles(paths, pick=pick, stdin_filename=stdin_filename)
    format = format or _default_format()
    is_json = format is FindingsFormat.JSON
    report = run.lint(files, settings=settings or (), fingerprints=is_json)
    _print(report, format)
    bad = report.count(Severity.ERROR) + (report.count(Severity.WARNING) if strict else 0)
    raise typer.Exit(1 if bad else 0)


def check(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILE…",
            help="Profile files or folders of them, `-` for stdin, or `--` followed by a vLLM"
            " command.",
        ),
    ],
    *,
    assume: Assume = None,
    offline: Annotated[
        bool, flag("--offline", "Read no network: only directories, the Hub cache and locks.")
    ] = False,
    locked: Locked = None,
    strict: Strict = False,
    complete: Annotated[bool, flag("--complete", "Also fail for skipped checks.")] = False,
    verbose: Verbose = False,
    vllm: Annotated[str | None, text_option("VERSION|installed|PATH", _VLLM, "--vllm")] = None,
    format: Format = None,
    settings: Settings = None,
) -> None:
    """Prove before the launch that target and draft agree and fit in memory.

    check judges the profile, tokenizers, models, memory, hardware and this host. It reads
    configurations, tokenizer files and tensor headers from directories, the Hub cache or the Hub,
    but no weights. What it could not check is listed as skipped and never counts as ok.

    Exit codes: 1 if errors were found (with --strict also for warnings, with --complete also for
    skipped checks); 2 if a model does not exist, if it is gated, or if the Hub does not answer. If
    specserve ships a copy of the model's configuration, the Hub need not answer: check uses the
    copy, and what it cannot check counts as skipped. With --offline, a model that is not on this
    machine also counts as skipped.

    \b
    specserve check configs/demo.yaml
    specserve check configs/llama70b-8b.yaml --assume 4xH100-80GB
    specserve check my.yaml --offline --strict --format json
    specserve check my.yaml --complete
    specserve check my.yaml --vllm installed
    specserve check -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.check import Checked
    from specserve.checks.check import check as check_profiles
    from specserve.checks.gather import CheckOptions
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.profile.load import examine_partial
    from specserve.report.findings import StderrNotices
    from specserve.serve.detached.launch import running_records

    is_asked, source = False, None
    if vllm is not None and not vllm[:1].isdigit():
        from specserve.checks.oracle import vllm_to_ask

        is_asked, source = True, Path(vllm) if vllm != "installed" else None
        asked = vllm_to_ask(
            source
        )  # a folder without a vLLM is an error before anything is checked
        vllm = asked.version if source else None
    notices = StderrNotices()
    wanted = CheckOptions(
        offline=offline,
        locked=locked,
        machine=machine_of(assume) if assume else None,
        ask_vllm="always" if is_asked else "if_kept",
        vllm_source=source,
        version=_known_version(vllm) if vllm else None,
        servers={record.port: record.name for record in running_records()},
        tell=notices.progress,
    )
    read = (
        (file, *examine_partial(file, settings=settings or ())) for file in named_profiles(paths)
    )
    report = check_profiles(read, wanted=wanted)
    notices.progress("")
    _print(report, format or _default_format(), is_verbose=verbose)
    verdicts = [verdict for verdict in report.verdicts if isinstance(verdict, Checked)]
    raise typer.Exit(
        _exit_code(
            report,
            unread=[verdict.undone.path for verdict in verdicts if verdict.undone],
            strict=strict,
            # with --assume, this host is none of the profile's business
            skips=complete and any(not assume or item.group != "host" for item in report.skipped),
        )
    )


def _exit_code(report: Report, *, unread: list[str], strict: bool, skips: bool) -> int:
    """What the report means for the exit code, and why on stderr if the sum does not say it."""
    if unread:
        what = escaped(unread[0])
        say(f"exit code 2: `{what}` was not checked, and nothing is published about it")
        return 2
    if report.count(Severity.ERROR):
        return 1
    if strict and report.count(Severity.WARNING):
        say("exit code 1: warnings count with `--strict`")
        return 1
    if skips:
        say("exit code 1: skipped rules count with `--complete`")
    return int(skips)


def _known_version(version: str) -> str:
    from specserve.vllm.versions import table

    known = table(version)
    if not known.exact:
        newer = f"vLLM {escaped(version)} is newer than every version that specserve knows"
        say(f"{newer}, so it is judged as {known.minor}")
    return known.minor


def _default_format() -> FindingsFormat:
    """Annotations in a job of GitHub Actions, text elsewhere."""
    is_job = os.environ.get("GITHUB_ACTIONS") == "true"
    return FindingsFormat.GITHUB if is_job else FindingsFormat.TEXT


def named_profiles(
    paths: Iterable[str], *, pick: bool = False, stdin_filename: str | None = None
) -> list[str]:
    """The profiles that these paths name, each once; a path that names none is a warning."""
    from specserve.profile.find import find_profiles

    def warn(text: str) -> None:
        say(f"{styled('warning', 'yellow')}: {text}")

    return find_profiles(list(paths), pick=pick, stdin_filename=stdin_filename, warn=warn)


def _print(report: Report, format: FindingsFormat, *, is_verbose: bool | None = None) -> None:
    """Findings to stdout, the sum to stderr. `is_verbose`: of a check, with figures."""
    try:
        if text := _text(report, format, is_verbose):
            out(text)
        if format is not FindingsFormat.JSON:
            _say_sum(report, explains=format in (FindingsFormat.TEXT, FindingsFormat.CONCISE))
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline


def _text(report: Report, format: FindingsFormat, is_verbose: bool | None) -> str:
    from specserve.report import findings, formats

    match format:
        case FindingsFormat.JSON:
            return formats.report_json(report)
        case FindingsFormat.SARIF:
            return formats.sarif(report)
        case FindingsFormat.GITHUB:
            return formats.github(report.findings, skipped=report.skipped)
        case FindingsFormat.CONCISE:
            return findings.concise(report.findings, skipped=report.skipped)
    if is_verbose is not None:
        from specserve.report.check import check_text

        return check_text(report, is_verbose=is_verbose)
    # an empty line stands between the findings and their sum
    return f"{findings.render(report.findings, stream=sys.stdout)}\n" if report.findings else ""


def _say_sum(report: Report, *, explains: bool) -> None:
    """The sum; to a person also how to read more, once."""
    from specserve.report.findings import summary

    say(summary(report))
    if explains and report.findings and is_terminal(sys.stderr):
        order = list(Severity)
        worst = min(report.findings, key=lambda finding: order.index(finding.severity))
        say(f"\n{styled('hint', 'cyan')}: `specserve rules {worst.code}` describes a rule")
