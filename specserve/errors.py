"""One family of exceptions, each with a hint on the way out, and the words that messages use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from specserve.diagnostics import Finding, shortened

_USER = re.compile(r"(?<=://)[^\s/'\"<>`]+@")


def without_user(text: str) -> str:
    """The text with `***` for the user and password of each URL, which proxies may have."""
    return _USER.sub("***@", text)


def system_reason(error: Exception) -> str:
    """Why the system refused, in lower case; another error's own words."""
    return (getattr(error, "strerror", None) or str(error)).lower()


_LONGEST_WORD = 60
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""The characters that could steer a terminal or break a line."""


def quoted(text: str) -> str:
    """Text of a file for a message: in backticks, short, and harmless to a terminal."""
    short = text if len(text) <= _LONGEST_WORD else text[:_LONGEST_WORD] + "…"
    return (
        f"`{CONTROL.sub(lambda match: match[0].encode('unicode_escape').decode('ascii'), short)}`"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to this one, if any is near enough."""
    if len(word) > _LONGEST_WORD:
        return None
    from difflib import get_close_matches  # a profile without a misspelt key needs none

    lowered, word = {name.lower(): name for name in known}, word.lower().replace("-", "_")
    pairs = _pairs(
        word
    )  # a file may have a thousand unknown keys, and difflib takes 10 ms for all names of vLLM
    likely = sorted(lowered, key=lambda name: len(pairs & _pairs(name)), reverse=True)[
        :_MOST_LIKELY
    ]
    found = get_close_matches(word, likely, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


_MOST_LIKELY = 12


@lru_cache(maxsize=2048)
def _pairs(word: str) -> frozenset[tuple[str, str]]:
    """The letters that stand side by side, with the ends of the word."""
    return frozenset(zip(f" {word}", f"{word} ", strict=True))


class SpecserveError(Exception):
    """The work could not be done: exit code 2. `hint` says what the user can do about it."""

    exit_code = 2

    def __init__(
        self, message: str, *, hint: str | None = None, causes: tuple[str, ...] = ()
    ) -> None:
        self.message = shortened(without_user(message))
        super().__init__(self.message)
        self.hint = hint
        self.causes = tuple(map(without_user, causes))


class UsageError(SpecserveError):
    """The command line asks for something that does not exist."""


class ProfileError(SpecserveError):
    """A profile cannot be used; `findings` holds every problem of it."""

    def __init__(
        self, message: str, *, findings: tuple[Finding, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings


class FactError(SpecserveError):
    """Something outside (a file, the disk, an installed package) is not as it must be."""

    cause: str = "broken"
    """Which of its kinds it is, in one word, for programs."""


class ModelNotFound(FactError):
    """There is no such directory, repository or revision."""

    cause = "not_found"


class GatedModel(FactError):
    """The Hub does not show the repository to this user: gated, private, or a bad token."""

    cause = "gated"


class NotCached(FactError):
    """The Hub may not be asked, and this machine has no copy."""

    cause = "offline"


class HubUnreachable(FactError):
    """The Hub does not answer as it must: no network, a stall, an error 500, a wrong length."""

    cause = "unreachable"


class NotHere(FactError):
    """A path of another machine than this one, where nobody can look at it."""

    cause = "elsewhere"


class UnsupportedModel(FactError):
    """A kind of model reference that specserve does not read: a bucket, a GGUF file."""

    cause = "unsupported"


class LaunchError(SpecserveError):
    """vLLM did not come up, or died while serving."""

    def __init__(
        self,
        message: str,
        *,
        phase: str | None = None,
        log_path: str | None = None,
        log_tail: tuple[str, ...] = (),
        hint: str | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, causes=causes)
        self.phase = phase
        self.log_path = log_path
        self.log_tail = log_tail


class TrafficError(SpecserveError):
    """A request to a server failed."""


class Interrupted(SpecserveError):
    """A signal ended the work before it was done: exit code 130 or 143."""

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class CheckFailed(ProfileError):
    """The profile was read, and a rule found an error: exit code 1."""

    exit_code = 1
