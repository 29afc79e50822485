"""The two sides of a comparison: profiles, profiles of a commit, locks and commands, and the launches they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specserve.convert.command import NoStart, profile_of
from specserve.errors import ProfileError, UsageError
from specserve.models.lock import Lock, read_lock
from specserve.plan.compare import Side
from specserve.plan.launch import launch
from specserve.plan.locking import locked
from specserve.profile.codes import quoted
from specserve.profile.load import load_profile
from specserve.profile.revision import at_revision, load_at
from specserve.profile.schema import Profile
from specserve.vllm.versions import in_range, known_versions, table

_LOCK = ".lock.json"


@dataclass(frozen=True, slots=True)
class Compared:
    """A profile with the name that its side has; with a lock: at its commits, with the facts that it holds."""

    label: str
    profile: Profile
    lock: Lock | None = None


def read_side(words: Sequence[str], *, settings: Iterable[str]) -> Compared:
    """A profile, `PROFILE@REVISION`, `NAME.lock.json`, or the words of a vLLM command.

    Raises UsageError, ProfileError, FactError.
    """
    if len(words) != 1:
        return _converted(words, settings)
    name = words[0]
    if name.startswith(("http://", "https://")):
        hint = "put the server's command line behind `--`"
        raise UsageError(f"{quoted(name)} is no profile: `specserve diff` reads files", hint=hint)
    if name.endswith(_LOCK):
        return _beside_lock(name, settings)
    place = at_revision(name)
    profile = load_at(*place, settings=settings) if place else load_profile(name, settings=settings)
    return Compared(name, profile)


def _beside_lock(name: str, settings: Iterable[str]) -> Compared:
    """The profile beside a lock, at the commits of the lock."""
    stem = name.removesuffix(_LOCK)
    beside = [file for file in (f"{stem}.yaml", f"{stem}.yml") if Path(file).is_file()]
    lock = read_lock(Path(name))
    if lock is None or not beside:
        missing = f"there is no lock `{name}`" if lock is None else f"there is no profile beside `{name}`"
        raise UsageError(missing, hint="`specserve lock PROFILE` writes NAME.lock.json beside NAME.yaml")
    return Compared(name, load_profile(beside[0], settings=settings), lock)


def _converted(words: Iterable[str], settings: Iterable[str]) -> Compared:
    try:
        profile, findings = profile_of(words, settings=settings)
    except NoStart as error:
        error.hint = "write `specserve diff A -- vllm serve MODEL …`"
        raise
    if profile is None or any(finding.code.startswith("SD0") for finding in findings):
        raise ProfileError("the command is not one that specserve can plan", findings=tuple(findings))
    return Compared(profile.file, profile)


def launches(a: Compared, b: Compared, *, versions: Sequence[str | None]) -> tuple[Side, Side]:
    """The launch of each side by its version, or by the newest that both are for; not for this machine."""
    ranges = [in_range(item.profile.vllm or "") or known_versions() for item in (a, b)]
    common = [version for version in ranges[0] if version in ranges[1]]
    named = [item.profile.hardware.accelerator for item in (a, b) if item.profile.hardware]
    sides = []
    for item, known, vllm in zip((a, b), ranges, versions, strict=True):
        profile = locked(item.profile, item.lock) if item.lock else item.profile
        version = vllm or (common or list(known))[-1]
        # a command names no hardware: it is for the machine of the other side
        cpu = "+cpu" in version or "cpu" in ([profile.hardware.accelerator] if profile.hardware else named)
        plan = launch(profile, table=table(version), platform="cpu" if cpu else "cuda", version=version)
        sides.append(Side(profile, plan))
    return sides[0], sides[1]
