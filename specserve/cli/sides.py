"""The two sides of a comparison: profiles, profiles of a commit, locks, arms, vLLM commands. Compares nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import ProfileError, UsageError
from specserve.profile.codes import quoted

if TYPE_CHECKING:
    from specserve.models.lock import Lock
    from specserve.profile.schema import Profile

_END = "--"
_LOCK = ".lock.json"


@dataclass(frozen=True, slots=True)
class Taken:
    """A profile with the name that its side has; with a lock: at its commits, with the facts that it holds."""

    label: str
    profile: Profile
    lock: Lock | None = None


def pair(
    words: list[str],
    *,
    alternative: str | None,
    baseline: bool,
    settings: Iterable[str],
    alone: bool = False,
) -> tuple[Taken, Taken]:
    """Both sides; `alone`: the same launch twice, if no other is named. Raises UsageError, ProfileError, FactError."""
    first, second = _split(words)
    a = _taken(first, settings)
    if alone and not second and alternative is None and not baseline:
        return a, a
    if alternative is None and not baseline:
        if not second:
            hint = "name a second one, or compare with `--alternative`, `--baseline` or `--vllm-source` of the first"
            raise UsageError("`specserve diff` takes two sides; found one", hint=hint)
        return a, _taken(second, settings)
    if second:
        raise UsageError("`--alternative` and `--baseline` make B out of A; found a second side")
    from specserve.profile.load import with_alternative

    arm = f"alternative {alternative}" if alternative else "baseline"
    return a, Taken(f"{a.label} ({arm})", with_alternative(a.profile, alternative, baseline=baseline), a.lock)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of each side: a profile is one word, a command several; a second `--` may stand between them."""
    if _END in words:
        at = words.index(_END)
        return words[:at], words[at + 1 :]
    if len(words) <= 2 or _is_command(words[1:]):
        return words[:1], words[1:]
    if _is_command(words):
        return words, []
    raise UsageError(
        f"`specserve diff` takes two sides; found {len(words)}", hint="a vLLM command stands behind `--`"
    )


def _is_command(words: list[str]) -> bool:
    """Whether the words are one command from the first on, as in `diff --baseline -- vllm serve M`."""
    if len(words) < 2:
        return False
    from specserve.convert.invocation import invocation
    from specserve.convert.words import argv_words

    return invocation(argv_words(words)[1]) is not None


def _taken(words: list[str], settings: Iterable[str]) -> Taken:
    if len(words) != 1:
        return _converted(words, settings)
    (name,) = words
    if name.startswith(("http://", "https://")):
        hint = "put the server's command line behind `--`"
        raise UsageError(f"{quoted(name)} is no profile: `specserve diff` reads files", hint=hint)
    if name.endswith(_LOCK):
        return _locked(name, settings)
    if not Path(name).is_file() and (command := _running(name)):
        return replace(_converted(command, settings), label=f"{name} (running)")
    from specserve.profile.load import load_profile
    from specserve.profile.revision import at_revision, load_at

    place = at_revision(name)
    profile = load_at(*place, settings=settings) if place else load_profile(name, settings=settings)
    return Taken(name, profile)


def _running(name: str) -> list[str] | None:
    """The command of a detached server as its process has it; None where none of that name runs."""
    from specserve.serve.detached.processes import Detached
    from specserve.serve.detached.registry import names, read

    if name not in names():
        return None
    record = read(name)
    if record is None or not Detached(record).is_running() or record.leader is None:
        raise UsageError(f"the server {quoted(name)} does not run", hint="`specserve ps` lists the servers")
    import psutil

    words = psutil.Process(record.leader[0]).cmdline()
    return words[1:] if "python" in Path(words[0]).name else words  # a script's first word is its interpreter


def _locked(name: str, settings: Iterable[str]) -> Taken:
    """The profile beside a lock, at the commits of the lock."""
    from specserve.models.lock import read_lock
    from specserve.profile.load import load_profile

    stem = name.removesuffix(_LOCK)
    beside = [file for file in (f"{stem}.yaml", f"{stem}.yml") if Path(file).is_file()]
    lock = read_lock(Path(name))
    if lock is None or not beside:
        missing = f"there is no lock `{name}`" if lock is None else f"there is no profile beside `{name}`"
        raise UsageError(missing, hint="`specserve lock PROFILE` writes NAME.lock.json beside NAME.yaml")
    return Taken(name, load_profile(beside[0], settings=settings), lock)


def _converted(words: list[str], settings: Iterable[str]) -> Taken:
    from specserve.convert.command import NoStart, profile_of

    try:
        profile, findings = profile_of(words, settings=settings)
    except NoStart as error:
        error.hint = "write `specserve diff A -- vllm serve MODEL …`"
        raise
    if profile is None or any(finding.code.startswith("SD0") for finding in findings):
        raise ProfileError("the command is not one that specserve can plan", findings=tuple(findings))
    return Taken(profile.file, profile)
