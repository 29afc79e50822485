"""`specserve lock` and `pull`: the models of a profile, pinned and downloaded."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import PROFILE, Alternative, argument, flag
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
    from specserve.plan.locking import entries, lock_of, locked
    from specserve.plan.uses import cache_of, downloads
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
