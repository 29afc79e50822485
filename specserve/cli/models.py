"""`specserve lock` and `pull`: the models of a profile, pinned and downloaded."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Alternative, flag
from specserve.errors import HubUnreachable, NotCached
from specserve.profile.schema import Profile
from specserve.report.console import escaped, out, say
from specserve.report.text import count


def lock(
    profiles: Annotated[
        list[str], typer.Argument(metavar="PROFILE", help="Profile files, or folders of them.")
    ],
    *,
    check: Annotated[
        bool, flag("--check", "Write nothing; exit with 1 if a lock is missing or stale.")
    ] = False,
) -> None:
    """Record the exact commits of a profile's models.

    The lock is the file NAME.lock.json beside NAME.yaml. It holds the commits, configurations,
    tensor shapes and hashes of the models, and how their tokenizers compare. `up`, `plan` and
    `generate` then use exactly these files, and `check --locked` needs nothing else. For weights in
    a directory, the lock records size and header. A lock that is up to date is not rewritten. With
    HF_HUB_OFFLINE=1, lock reads only directories and the Hub cache.

    \b
    specserve lock configs/llama70b-8b.yaml
    specserve lock --check configs/         in CI: is every lock up to date?
    """
    from specserve.cli.judge import named_profiles
    from specserve.models.hub import is_offline
    from specserve.plan.locking import LockState, lock_problems, lock_profile
    from specserve.profile.load import load_profile
    from specserve.report.findings import readable
    from specserve.report.launch import locks_text, say_locked

    states: list[LockState] = []
    for file in named_profiles(profiles):
        profile = load_profile(file)
        try:
            if check:
                state, problems = lock_problems(profile, ask_hub=not is_offline())
                states.append(state)
                for problem in problems:
                    out(readable(problem))
            else:
                say_locked(lock_profile(profile, offline=is_offline()), profile)
        except NotCached as error:
            error.hint = f"`specserve pull {file}` downloads it; unset HF_HUB_OFFLINE"
            raise
    if check:
        say(locks_text(states))
        if set(states) - {"holds"}:
            raise typer.Exit(1)


def pull(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file, or `-` for stdin.")],
    *,
    alternative: Alternative = None,
) -> None:
    """Download the models of a profile into the Hub cache.

    pull downloads the commits that the lock names, if there is a lock, and only the files that vLLM
    reads: safetensors rather than other weights, no originals, no GGUF. It checks the free disk
    space first, and continues a download that was interrupted. The paths of the snapshots go to
    stdout, the progress to stderr.

    \b
    specserve pull configs/llama70b-8b.yaml
    specserve pull configs/llama70b-8b.yaml --alternative llama-1b
    """
    from specserve.profile.load import load_profile

    loaded = load_profile(profile, alternative=alternative)
    try:
        fetch(at_lock(loaded))
    except NotCached as error:
        error.hint = "unset HF_HUB_OFFLINE: a download asks the Hub"
        raise
    except HubUnreachable as error:
        error.hint = "check the network and HF_ENDPOINT, and run it again: it continues where it stopped"
        raise


def at_lock(profile: Profile) -> Profile:
    """The profile at the commits of its lock, if it has one; says what the lock does not have."""
    from specserve.plan.locking import lock_of, locked, not_locked

    lock = lock_of(profile)
    if lock is None:
        return profile
    for use in not_locked(profile, lock):
        say(f"warning: `{escaped(use.model)}` is not in the lock")
    return locked(profile, lock)


def fetch(profile: Profile) -> None:
    """Download what a profile needs and the cache does not have. Raises FactError."""
    from specserve.models.hub import fetch_files, refuse_full_disk
    from specserve.plan.uses import cache_of, downloads

    cache = cache_of(profile)
    wanted = downloads(profile, tell=lambda text: say(f"{text} …"))
    if not wanted:
        say(f"nothing to download: every model of `{escaped(profile.name)}` is a local directory")
    refuse_full_disk(wanted, cache=cache)
    for download in wanted:
        name = f"{escaped(download.model)} at {download.commit[:12]}"
        if download.missing:
            size = _size(download.missing_bytes)
            say(f"downloading {name}: {count(len(download.missing), 'file')}, {size}")
        fetch_files(download, cache=cache, stall_s=profile.server.stall_timeout_s)
        say(f"{name}: {count(len(download.files), 'file')}, {_size(download.total_bytes)}, complete")
        out(str(download.folder))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
