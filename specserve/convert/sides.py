"""Two launches side by side, by the profiles and commands that name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specserve.convert.command import profile_of
from specserve.convert.launch import is_command
from specserve.diagnostics import Severity
from specserve.errors import ProfileError, UsageError
from specserve.plan.compare import Side
from specserve.plan.launch import launch
from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import Profile
from specserve.vllm.versions import in_range, known_versions, table

_Named = tuple[str, Profile, tuple[str, ...]]
"""What a side is called, its profile, and what is ignored of its command."""


def both_sides(words: Sequence[str], alternative: str | None) -> tuple[Side, Side]:
    """Both sides by the words that name them; an alternative or `baseline` derives B from A.

    Raises UsageError, ProfileError, FactError.
    """
    first, second = _split(list(words))
    a = _side(first)
    if alternative and second:
        raise UsageError("`--alternative` derives B from A, so a second launch cannot be given")
    if not alternative and not second:
        hint = "add a second one, or derive it by `--alternative`"
        raise UsageError("`specserve diff` takes two launches; found one", hint=hint)
    if alternative:
        label, profile, ignored = a
        b = f"{label} (alternative {alternative})", with_alternative(profile, alternative), ignored
    else:
        b = _side(second)
    return _launches(a, b)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of each side: a profile is one word, a command several; `--` may part them."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    if len(words) <= 2 or is_command(words[1:]):
        return words[:1], words[1:]
    if is_command(words):
        return words, []
    text = f"`specserve diff` takes two launches; found {len(words)} arguments"
    raise UsageError(text, hint="write a vLLM command after `--`")


def _side(words: Sequence[str]) -> _Named:
    """A profile, or the words of a vLLM command."""
    if len(words) != 1:
        return _converted(words)
    return words[0], load_profile(words[0]), ()


def _converted(words: Sequence[str]) -> _Named:
    profile, findings = profile_of(words)
    errors = (item for item in findings if item.severity is Severity.ERROR)
    unread = (
        item for item in errors if item.code.startswith("SD0") or (item.code == "SD105" and item.span.path)
    )
    if profile is None or any(unread):
        raise ProfileError("specserve cannot plan this command", findings=tuple(findings))
    if "server.host" not in profile.spans and not profile.frontend.get("uds"):
        # without `--host`, vLLM listens on every interface; a profile listens on loopback
        profile = replace(profile, server=replace(profile.server, host="0.0.0.0"))  # noqa: S104
    return profile.file, profile, tuple(item.message for item in findings if item.code == "SD102")


def _launches(*named: _Named) -> tuple[Side, Side]:
    """The launch of each side by the newest version that both are for; not for this machine."""
    ranges = [in_range(profile.vllm or "") or known_versions() for _, profile, _ in named]
    common = [version for version in ranges[0] if version in ranges[1]]
    accelerators = [profile.hardware.accelerator for _, profile, _ in named if profile.hardware]
    sides = []
    for (label, profile, ignored), known in zip(named, ranges, strict=True):
        version = (common or list(known))[-1]
        # a command names no hardware: it is for the machine of the other side
        own = [profile.hardware.accelerator] if profile.hardware else accelerators
        platform = "cpu" if "cpu" in own else "cuda"
        plan = launch(profile, table=table(version), platform=platform, version=version)
        sides.append(Side(label, profile, plan, ignored))
    return sides[0], sides[1]
