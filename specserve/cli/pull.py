"""`specserve pull`: the models of a profile into the Hub cache, before a launch waits for them."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Alternative, Settings, flag
from specserve.errors import HubUnreachable, NotCached, UsageError
from specserve.profile.schema import Profile
from specserve.report.console import clean, out, say
from specserve.report.numbers import count


def pull(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Profile file, or `-` for stdin.")],
    *,
    alternative: Alternative = None,
    everything: Annotated[bool, flag("--all", "Also download the models of every alternative.")] = False,
    no_lock: Annotated[
        bool, flag("--no-lock", "Download the newest commits instead of the locked ones.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Download the models of a profile into the Hub cache.

    pull downloads the commits that the lock names, if there is a lock, and only the files that vLLM reads: safetensors
    rather than other weights, no originals, no GGUF. It checks the free disk space first, and continues a download that
    was interrupted. The paths of the snapshots go to stdout, the progress to stderr.

    \b
    specserve pull configs/llama70b-8b.yaml
    specserve pull configs/llama70b-8b.yaml --alternative llama-1b
    """
    from specserve.profile.load import load_profile, with_alternative

    if everything and alternative:
        raise UsageError("`--all` and `--alternative` cannot be combined")
    loaded = with_alternative(load_profile(profile, settings=settings or ()), alternative, baseline=False)
    try:
        fetch(loaded if no_lock else at_lock(loaded), everything=everything)
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
        say(f"warning: `{clean(use.model)}` is not in the lock")
    return locked(profile, lock)


def fetch(profile: Profile, *, everything: bool = False) -> None:
    """Download what a profile needs and the cache does not have. Raises FactError."""
    from specserve.models.hub import fetch_files, refuse_full_disk
    from specserve.plan.uses import cache_of, downloads

    cache = cache_of(profile)
    wanted = downloads(profile, alternatives=everything, tell=lambda text: say(f"{text} …"))
    if not wanted:
        say(f"nothing to download: every model of `{clean(profile.name)}` is a local directory")
    refuse_full_disk(wanted, cache=cache)
    for download in wanted:
        name = f"{clean(download.model)} at {download.commit[:12]}"
        if download.missing:
            size = _size(download.missing_bytes)
            say(f"downloading {name}: {count(len(download.missing), 'file')}, {size}")
        fetch_files(download, cache=cache, stall_s=profile.server.stall_timeout_s)
        say(f"{name}: {count(len(download.files), 'file')}, {_size(download.total_bytes)}, complete")
        out(str(download.folder))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
