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
    from specserve.models.hub import is_offline
    from specserve.plan.locking import LockState, lock_problems, lock_profile
    from specserve.profile.load import load_profile
    from specserve.report.findings import readable
    from specserve.report.launch import say_locked

    states: list[LockState] = []
    for file in named_profiles(profiles):
        profile = load_profile(file)
        try:
            if not check:
                say_locked(lock_profile(profile), profile)
                continue
            state, problems = lock_problems(profile, ask_hub=not is_offline())
        except FactError as error:
            if error.cause == "offline":
                error.hint = f"`specserve pull {file}` downloads it; unset HF_HUB_OFFLINE"
            raise
        states.append(state)
        for problem in problems:
            out(readable(problem))
    if check:
        bad = len(states) - states.count("holds")
        cure = ": `specserve lock` updates them" if bad else ""
        say(f"{bad} of {count(len(states), 'lock')} missing or stale{cure}")
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
    from specserve.plan.locking import lock_of, locked, not_locked
    from specserve.plan.uses import cache_of, downloads
    from specserve.profile.load import load_profile

    loaded = load_profile(profile, alternative=alternative)
    if known := lock_of(loaded):
        for use in not_locked(loaded, known):
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
