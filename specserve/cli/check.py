"""`specserve lint`, `check` and `doctor`: profiles alone, with their models and vLLM; this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specserve.cli import options
from specserve.cli.options import argument, flag, option
from specserve.diagnostics import Report, Severity
from specserve.errors import FactError, UsageError
from specserve.report.console import escaped, mute, out, say, styled

if TYPE_CHECKING:
    from specserve.checks.doctor import Line

Form = Literal["text", "concise", "json", "github", "sarif"]
_PATHS = "Profile files, folders, `-` for stdin, or `--` followed by a vLLM command."
Paths = Annotated[list[str], argument("PATH…", _PATHS)]
_FORMAT = "Output format (default: text; in GitHub Actions: github)."
Format = Annotated[Form | None, typer.Option("--format", show_default=False, help=_FORMAT)]
_PICK = "Skip named files that are not profiles (in folders they are always skipped)."
_OFFLINE = "Read no network: only directories, the Hub cache and locks."
_VLLM = "Judge for this version (see `upgrade` for what it changes)."
_NO_ASK = "Do not let the installed vLLM judge the launch (10 s at first, then cached)."
_REPORT = "Print the last start, or that of NAME, as Markdown for an issue."
_REPORTED = "Name of a detached server (with --report)."
_ACCELERATORS = "Show only the accelerators here, and the names for --assume."


def lint(
    paths: Paths,
    *,
    format: Format = None,
    strict: options.Strict = False,
    pick: Annotated[bool, flag("--pick", _PICK)] = False,
    settings: options.Settings = None,
) -> None:
    """Judge profiles on their own: no network, no GPU, no vLLM.

    lint is fast enough for CI and for every commit. In a folder, every *.yaml and *.yml file with a
    top-level `target` or `extends` is a profile. A file whose name starts with `_` is a base: it is
    judged through the profiles that extend it. A file that you name always counts as a profile,
    unless you give --pick. Exit code 1: errors were found.

    \b
    specserve lint configs/
    specserve lint deploy/ --format sarif > specserve.sarif
    specserve lint -- vllm serve org/model --speculative-config '{…}'
    """
    from specserve.checks import run

    files = named_profiles(paths, pick=pick)
    report = run.lint(files, settings=settings or (), fingerprints=format == "json")
    _print(report, format)
    raise typer.Exit(_is_bad(report, strict=strict))


def check(
    paths: Paths,
    *,
    assume: options.Assume = None,
    offline: Annotated[bool, flag("--offline", _OFFLINE)] = False,
    locked: options.Locked = False,
    strict: options.Strict = False,
    complete: Annotated[bool, flag("--complete", "Also fail for skipped checks.")] = False,
    verbose: options.Verbose = False,
    vllm: Annotated[str | None, option("VERSION", _VLLM, "--vllm")] = None,
    no_ask: Annotated[bool, flag("--no-ask", _NO_ASK)] = False,
    format: Format = None,
    settings: options.Settings = None,
) -> None:
    """Judge before the launch whether target and draft agree and fit in memory.

    check judges the profile, tokenizers, models, memory and hardware. It reads
    configurations, tokenizer files and tensor headers from directories, the Hub cache or the Hub,
    but no weights. Where vLLM is installed, its own code then judges the launch, too, for a GPU
    that need not be here. What could not be checked is listed as skipped and never counts as ok.

    Exit codes: 1 if errors were found (with --strict also for warnings, with --complete also for
    skipped checks); 2 if a model does not exist or is gated, or if the Hub does not answer and
    specserve ships no copy of the model's configuration. With --offline, a model that is not on
    this machine counts as skipped.

    \b
    specserve check configs/demo.yaml
    specserve check configs/llama70b-8b.yaml --assume 4xH100-80GB
    specserve check my.yaml --offline --strict --format json
    specserve check -- vllm serve org/model --max-model-len 8192
    """
    from specserve.checks.check import Checked
    from specserve.checks.check import check as check_profiles
    from specserve.checks.collect import CheckOptions
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.memory.starts import kept
    from specserve.profile.load import examine
    from specserve.report.findings import StderrNotices, show_findings
    from specserve.vllm.facts import minor
    from specserve.vllm.versions import table

    notices, shown, judged = StderrNotices(), list[Report](), table(vllm) if vllm else None
    wanted = CheckOptions(
        offline=offline,
        locked=locked or None,
        machine=machine_of(assume) if assume else None,
        asks=not no_ask,
        version=judged.minor if judged else None,
        starts=kept(warn=notices.warn),
        tell=notices.progress,
    )
    files, settings = named_profiles(paths), settings or []
    if vllm and judged and not judged.exact:
        say(f"specserve does not know vLLM {escaped(vllm)}, so it is judged as {judged.minor}")
        # of a version without a table it is known by its range what fails in it
        settings = [*settings, 'vllm="=={}.{}.*"'.format(*minor(vllm))]
    read = ((file, *examine(file, settings=settings)) for file in files)

    def before(report: Report) -> None:
        notices.progress("")
        if _form(format) == "text":  # its answer comes with vLLM's
            shown.append(report)
            show_findings(report)
        notices.progress("asking vLLM, about 10 s")

    report = check_profiles(read, wanted=wanted, before=before)
    notices.progress("")
    _print(report, format, is_verbose=verbose, shown=shown[0] if shown else None)
    verdicts = [verdict for verdict in report.verdicts if isinstance(verdict, Checked)]
    if unread := [verdict.undone.path for verdict in verdicts if verdict.undone]:
        say(f"exit code 2: `{escaped(unread[0])}` was not checked, and nothing is published of it")
        raise typer.Exit(2)
    raise typer.Exit(_is_bad(report, strict=strict) or int(complete and bool(report.skipped)))


def _is_bad(report: Report, *, strict: bool) -> int:
    """The exit code by the findings alone."""
    warnings = report.count(Severity.WARNING) if strict else 0
    return int(report.count(Severity.ERROR) + warnings > 0)


def named_profiles(paths: Iterable[str], *, pick: bool = False) -> list[str]:
    """The profiles that these paths name, each once; a path that names none is a warning."""
    from specserve.profile.source import find_profiles

    def warn(text: str) -> None:
        say(f"{styled('warning', 'yellow')}: {text}")

    return find_profiles(list(paths), pick=pick, warn=warn)


def _form(form: Form | None) -> Form:
    return form or ("github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text")


def _print(
    report: Report,
    format: Form | None,
    *,
    is_verbose: bool | None = None,
    shown: Report | None = None,
) -> None:
    """Findings to stdout, the sum to stderr. `is_verbose`: of a check; `shown` is on the screen."""
    from specserve.report import findings

    match _form(format):
        case "json":
            from specserve.report.formats import report_json

            text = report_json(report)
        case "sarif":
            from specserve.report.formats import sarif

            text = sarif(report)
        case "github":
            from specserve.report.formats import github

            text = github(report.findings, skipped=report.skipped)
        case "concise":
            text = findings.concise(report.findings, skipped=report.skipped)
        case "text" if is_verbose is not None:
            from specserve.report.check import check_text

            text = check_text(report, is_verbose=is_verbose, shown=shown)
        case "text":  # an empty line stands between the findings and their sum
            rendered = report.findings and findings.render(report.findings, stream=sys.stdout)
            text = f"{rendered}\n" if rendered else ""
    try:
        if text:
            out(text)
        if _form(format) != "json":
            say(findings.summary(report))
    except BrokenPipeError:
        mute(sys.stdout)  # the exit code is still of use to a pipeline


def doctor(
    name: Annotated[str | None, argument("NAME", _REPORTED)] = None,
    *,
    accelerators: Annotated[bool, flag("--accelerators", _ACCELERATORS)] = False,
    report: Annotated[bool, flag("--report", _REPORT)] = False,
    format: options.Format = "text",
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    `bad` means that a launch would fail or serve wrong output; the exit code is then 1. `note`
    means that something is worth fixing. doctor uses no network. It says whether there is a Hub
    token, and never shows it.

    With --report, it prints a start of vLLM as a block of Markdown for an issue: what the check had
    predicted of its memory, what vLLM logged, the causes found. Paths, addresses, secrets, and the
    names of profile, server and local models are left out; look at it before you post it.

    \b
    specserve doctor
    specserve doctor --accelerators
    specserve doctor --report
    specserve doctor --report demo
    """
    from specserve.checks.doctor import examine, this
    from specserve.files import state_folder
    from specserve.hardware.accelerators import catalogue, gpus, this_cpu
    from specserve.report.check import accelerators_text, doctor_text
    from specserve.report.text import json_document

    as_json = format == "json"
    if name and not report:
        raise UsageError("NAME needs `--report`")
    options.refuse_together(accelerators=accelerators, report=report)
    if report:
        _report_start(name, as_json=as_json)
        return
    if accelerators:
        found, cpu = gpus(), this_cpu()
        known = {"found": found, "cpu": cpu, "catalogue": catalogue()}
        out(json_document(known) if as_json else accelerators_text(found))
        return
    lines = list(examine(this(state=state_folder(), servers=server_lines)))
    out(json_document({"lines": lines}) if as_json else doctor_text(lines))
    if any(line.state == "bad" for line in lines):
        raise typer.Exit(1)


def _report_start(name: str | None, *, as_json: bool) -> None:
    """Print a detached server's start, or the last one. Raises UsageError and FactError."""
    from specserve.checks.doctor import examine, this
    from specserve.files import state_folder
    from specserve.memory.starts import kept
    from specserve.report.check import start_point, start_report
    from specserve.report.findings import StderrNotices
    from specserve.report.text import json_document
    from specserve.serve.logs import end_of, parse
    from specserve.serve.records import only_server, settled

    server = settled(only_server(name)) if name else None
    starts = kept(warn=StderrNotices().warn)
    found = [each for each in starts if server is None or each.log_path == server.log_path]
    if not found:
        of = f" of `{name}`" if name else ""
        raise FactError(f"there is no record of a start{of}", hint="`specserve up` makes one")
    if as_json:
        out(json_document(start_point(found[0])))
        return
    log = list[str]()
    with suppress(OSError):
        # a server's own words, not those on requests, and not the list of its routes
        lines = parse(end_of(Path(found[0].log_path), limit_bytes=1 << 16))
        texts = [line.text for line in lines if line.text.strip()]
        log = [text for text in texts if not text.startswith(("INFO: ", "Route: "))]
    here = list(examine(this(state=state_folder(), servers=lambda: ())))
    cause = server.cause if server else ""
    out(start_report(found[0], log=log[-15:], lines=here, cause=cause))


def server_lines() -> Iterator[Line]:
    """A line for each detached server."""
    from specserve.checks.doctor import note, ok
    from specserve.serve.records import observe_all

    servers = observe_all()
    for seen in servers:
        place = f" ({seen.record.url})" if seen.record else ""
        text = f"{seen.name}{place} {seen.state}{f': {seen.detail}' if seen.detail else ''}"
        is_well = seen.state in ("ready", "starting", "stopping")
        yield ok(text) if is_well else note(text, f"`specserve down {seen.name}` ends or clears it")
    if not servers:
        yield ok("none runs detached")
