"""`specserve drafts`, `lock`, `pull` and `distill`: the models of a profile."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specserve.cli.options import PROFILE, Alternative, Assume, Format, argument, flag, option
from specserve.errors import FactError
from specserve.report.console import escaped, out, say
from specserve.report.text import count

_CHECK = "Write nothing; exit with 1 if a lock is missing or stale."


def lock(
    profiles: Annotated[list[str], argument("PROFILE", "Profile files, or folders of them.")],
    *,
    check: Annotated[bool, flag("--check", _CHECK)] = False,
) -> None:
    """Record the exact commits of a profile's models.

    The lock is the file NAME.lock.json beside NAME.yaml. It holds the commits, configurations,
    tensor shapes and file sizes of the models; for a model in a directory, hashes of its small
    files instead of a commit. `up`, `plan` and `generate` then use exactly these files, and `check
    --locked` needs nothing else, but compares no tokenizers. A lock that is up to date is not
    rewritten. With HF_HUB_OFFLINE=1, lock reads only directories and the Hub cache.

    \b
    specserve lock configs/llama70b-8b.yaml
    specserve lock --check configs/         in CI: is every lock up to date?
    """
    from specserve.cli.check import named_profiles
    from specserve.plan.locking import lock_profile
    from specserve.profile.load import load_profile
    from specserve.report.launch import lock_problems, say_locked

    files, bad = named_profiles(profiles), 0
    for file in files:
        profile = load_profile(file)
        if check:
            problems = lock_problems(profile)
            for problem in problems:
                out(problem)
            bad += bool(problems)
            continue
        try:
            made, is_new = lock_profile(profile)
        except FactError as error:
            if error.cause == "offline":
                error.hint = f"`specserve pull {file}` downloads it; unset HF_HUB_OFFLINE"
            raise
        say_locked(made, profile, changed=is_new)
    if check:
        cure = ": `specserve lock` updates them" if bad else ""
        say(f"{bad} of {count(len(files), 'lock')} missing or stale{cure}")
        raise typer.Exit(1 if bad else 0)


def pull(
    profile: Annotated[str, argument("PROFILE", PROFILE)],
    *,
    alternative: Alternative = None,
) -> None:
    """Download the models of a profile into the Hub cache.

    pull downloads the commits that the lock names, if there is a lock, and only the files that vLLM
    reads: safetensors rather than other weights, no originals, no GGUF. It checks the free disk
    space first, and continues a download that was interrupted. The paths of the snapshots go to
    stdout, the progress to stderr.

    \b
    specserve pull configs/llama70b-8b.yaml --alternative llama-1b
    """
    from specserve.models.hub import fetch_files, refuse_full_disk
    from specserve.plan.locking import cache_of, downloads, entries, lock_of, locked
    from specserve.profile.load import load_profile

    loaded = load_profile(profile, alternative=alternative)
    if known := lock_of(loaded):
        for use, entry in entries(loaded, known):
            if entry is None:
                say(f"warning: `{escaped(use.model)}` is not in the lock")
        loaded = locked(loaded, known)
    cache = cache_of(loaded)
    try:
        wanted = downloads(loaded, tell=lambda text: say(f"{text} …"))
        if not wanted:
            name = escaped(loaded.name)
            say(f"nothing to download: every model of `{name}` is a local directory")
        refuse_full_disk(wanted, cache=cache)
        for each in wanted:
            name = f"{escaped(each.model)} at {each.commit[:12]}"
            if each.missing:
                size = f"{each.missing_bytes / 1e6:,.0f} MB"
                say(f"downloading {name}: {count(len(each.missing), 'file')}, {size}")
            fetch_files(each, cache=cache)
            say(f"{name}: {count(len(each.files), 'file')}, complete")
            out(str(each.folder))
    except FactError as error:
        if error.cause == "unreachable":
            network = "check the network and HF_ENDPOINT"
            error.hint = f"{network}, and run it again: it continues where it stopped"
        raise


_TARGET = "Hub id or folder of a model, or a profile file."
_PROFILE = "Profile file; its draft is the start."
_ONLINE = "Also ask the Hub: its drafts of the target, and the files of every draft."
_WRITE = "Write this draft into the profile as an alternative; repeatable."
_TRAFFIC = "Requests to learn from: a request log, or prompts as JSON lines."
_TRAIN_FOR = "Train for this long at most, such as 5m or 1h (default: 10m)."


def drafts(
    target: Annotated[str, argument("TARGET|PROFILE", _TARGET)],
    *,
    assume: Assume = None,
    online: Annotated[bool, flag("--online", _ONLINE)] = False,
    write: Annotated[list[str] | None, option("DRAFT", _WRITE, "--write")] = None,
    format: Format = "text",
) -> None:
    """List the ways to speculate for a target, with their sources.

    The list comes from a catalogue that ships with specserve: heads, draft models and layers of the
    target itself. For a quantized copy of a target, the list shows the drafts of the original. Each
    draft is judged by the rules that need no model; with --online, also by its files on the Hub.
    With --assume, the list says what fits on this machine.

    \b
    specserve drafts openai/gpt-oss-20b
    specserve drafts meta-llama/Llama-3.3-70B-Instruct --assume 4xH100-80GB
    specserve drafts my.yaml --write nebius/EAGLE3-gpt-oss-20b
    """
    from specserve.hardware.accelerators import assume as machine_of
    from specserve.measure.drafts import add_alternatives, find_drafts
    from specserve.report.drafts import drafts_document
    from specserve.report.findings import StderrNotices
    from specserve.report.text import json_document, json_values

    notices = StderrNotices()
    machine = machine_of(assume) if assume else None
    found = find_drafts(target, machine=machine, online=online, tell=notices.progress)
    notices.progress("")
    if write:
        places = ", ".join(f"`{place}`" for place in add_alternatives(target, write, found=found))
        say(f"{target}: has {places}; `git diff` shows what changed")
    elif format == "json":
        out(json_document(json_values(found)))
    else:
        out(drafts_document(found).text(sys.stdout).rstrip("\n"))


def distill(
    profile: Annotated[str, argument("PROFILE", _PROFILE)],
    *,
    traffic: Annotated[str, option("LOG.jsonl", _TRAFFIC, "--traffic")],
    train_for: Annotated[str, typer.Option("--train-for", metavar="TIME", help=_TRAIN_FOR)] = "10m",
) -> None:
    """Train the profile's draft on your own traffic.

    The target answers the prompts of the traffic, and the draft learns from the answers. A fifth of
    the prompts is held out. If the training finds a better state, bench measures both drafts on the
    held-out prompts. Only if the new draft is surely accepted more often, it is written into the
    profile, as the alternative `distilled`. Nothing leaves this machine. The same command resumes a
    distillation that was interrupted.

    Exit codes: 1 if the new draft is not better; 2 if the traffic is too small or anything cannot
    be read.

    \b
    specserve distill configs/demo.yaml --traffic log.jsonl
    specserve distill my.yaml --traffic log.jsonl --train-for 1h
    """
    from specserve.measure.distill import DistillRequest, plan_distillation, run_distillation
    from specserve.measure.servers import Outlet
    from specserve.measure.values import seconds
    from specserve.report.bench import BenchView, result_files
    from specserve.report.drafts import distilled_document, training_line
    from specserve.report.findings import StderrNotices
    from specserve.report.servers import generation_line
    from specserve.report.text import json_document, json_values

    train_for_s = seconds(train_for, option="--train-for", least_s=5.0)
    request = DistillRequest(profile, traffic, train_for_s)
    plan = plan_distillation(request, notices=StderrNotices())
    outlet, show = Outlet(StderrNotices(), BenchView, result_files), training_line()
    found = run_distillation(plan, outlet=outlet, generating=generation_line, training=show)
    plan.write("result.json", json_document(json_values(found)))
    out(distilled_document(found).text(sys.stdout).rstrip("\n"))
    if not found.is_better:
        raise typer.Exit(1)
