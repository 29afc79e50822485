"""`specserve lock`: pin the models of profiles, and see whether a lock still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from specserve.errors import FactError, NotCached
from specserve.profile.schema import Profile
from specserve.report.console import clean, out, say, styled

LockState = Literal["holds", "missing", "stale"]


def lock(
    profiles: Annotated[list[str], typer.Argument(metavar="PROFILE…", help="Profiles, or folders of them.")],
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if a lock is missing or stale.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Directories and the Hub cache only.")] = False,
) -> None:
    """Record which commits of which models a profile is for.

    The lock is NAME.lock.json beside NAME.yaml. With the commits it holds configurations, tensor shapes,
    hashes and how the tokenizers compare: `up`, `plan` and `generate` then serve exactly these, and `check
    --locked` needs nothing else. Weights in a directory are known by their size and header. A lock that
    says the same already is left as it is.

    \b
    specserve lock configs/llama70b-8b.yaml
    specserve lock --check configs/         in CI: is every lock up to date?
    """
    from specserve.cli.judge import inputs
    from specserve.profile.load import load_profile

    states: list[LockState] = []
    files = list(inputs(profiles, pick=False, stdin_filename=None))
    for file in files:
        profile = load_profile(file)
        try:
            if check:
                states.append(_state(profile, offline=offline))
            else:
                _write(profile, offline=offline)
        except NotCached as error:
            otherwise = "without `--offline` the Hub is asked" if offline else "unset HF_HUB_OFFLINE"
            error.hint = f"`specserve pull {file}` downloads it; {otherwise}"
            raise
    if check:
        say(_sum(states))
        raise typer.Exit(1 if set(states) - {"holds"} else 0)


def _sum(states: list[LockState]) -> str:
    """What is wrong with how many of them, and how to cure it."""
    bad = {state: states.count(state) for state in sorted(set(states)) if state != "holds"}
    if not bad:
        return f"all locks hold: {len(states)}"
    counted = " and ".join(f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in bad.items())
    of = f"{len(states)} lock{'s' if len(states) > 1 else ''}:"
    return f"{of} {counted}\n\n{styled('hint', 'cyan')}: `specserve lock` with the same paths updates them"


def _write(profile: Profile, *, offline: bool) -> None:
    from specserve.plan.locking import lock_profile
    from specserve.report.findings import readable

    done = lock_profile(profile, offline=offline)
    say(f"{'locked' if done.changed else 'unchanged'}: `{profile.name}`, {len(done.models)} models")
    for facts in done.models:
        revision = f" ({facts.revision})" if facts.revision and facts.revision != facts.commit else ""
        say(f"  {clean(facts.model)}{revision} {facts.commit[:12] if facts.commit else 'by its files'}")
        for note in facts.notes:
            say(f"    note: {readable(note)}")
    out(_shown(done.file))


def _state(profile: Profile, *, offline: bool) -> LockState:
    """Whether the lock of a profile is there and still right; says what is not. A branch that moved is a note."""
    from specserve.plan.locking import drifts_from, lock_of, unused
    from specserve.report.findings import readable

    try:
        found = lock_of(profile)
    except FactError as error:
        out(f"{profile.file}: {readable(error.message)}")
        return "stale"
    if found is None:
        out(f"{profile.file}: there is no lock")
        return "missing"
    words = {"unlocked": "is not in the lock", "changed": "has changed", "moved": "has moved on the Hub"}
    holds = True
    for drift in drifts_from(profile, found, ask_hub=not offline):
        detail = f": {', '.join(drift.detail)}" if drift.detail else ""
        note = "note: " if drift.kind == "moved" else ""
        out(readable(f"{profile.span(drift.path)}: {note}`{drift.model}` {words[drift.kind]}{detail}"))
        holds = holds and drift.kind == "moved"
    for model in unused(profile, found):
        out(clean(f"{profile.file}: `{model}` of the lock is not in the profile"))
        holds = False
    return "holds" if holds else "stale"


def _shown(file: Path) -> str:
    """Relative to the current folder, if it lies in it."""
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
