"""`specserve lock`: pin the models of profiles, and see whether a lock still holds."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import flag
from specserve.errors import NotCached


def lock(
    profiles: Annotated[
        list[str], typer.Argument(metavar="PROFILE…", help="Profile files, or folders of them.")
    ],
    *,
    check: Annotated[
        bool, flag("--check", "Write nothing; exit with 1 if a lock is missing or stale.")
    ] = False,
    offline: Annotated[
        bool, flag("--offline", "Read no network: only directories and the Hub cache.")
    ] = False,
) -> None:
    """Record the exact commits of a profile's models.

    The lock is the file NAME.lock.json beside NAME.yaml. It holds the commits, configurations, tensor shapes and hashes
    of the models, and how their tokenizers compare. `up`, `plan` and `generate` then use exactly these files, and
    `check --locked` needs nothing else. For weights in a directory, the lock records size and header. A lock that is up
    to date is not rewritten.

    \b
    specserve lock configs/llama70b-8b.yaml
    specserve lock --check configs/         in CI: is every lock up to date?
    """
    from specserve.cli.judge import named_profiles
    from specserve.plan.locking import lock_profile
    from specserve.profile.load import load_profile
    from specserve.report.console import say
    from specserve.report.launch import LockState, lock_state, locks_text, say_locked

    states: list[LockState] = []
    files = named_profiles(profiles)
    for file in files:
        profile = load_profile(file)
        try:
            if check:
                states.append(lock_state(profile, offline=offline))
            else:
                say_locked(lock_profile(profile, offline=offline), profile)
        except NotCached as error:
            otherwise = "leave `--offline` out to ask the Hub" if offline else "unset HF_HUB_OFFLINE"
            error.hint = f"`specserve pull {file}` downloads it; {otherwise}"
            raise
    if check:
        say(locks_text(states))
        raise typer.Exit(1 if set(states) - {"holds"} else 0)
