"""One family of exceptions, each with a hint on the way out, and the words that messages use."""

from __future__ import annotations

import re
from collections.abc import Iterable

from specserve.diagnostics import Finding

_USER = r"(?<=://)[^\s/'\"<>`]+@"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""The characters that could steer a terminal or break a line."""


def without_user(text: str) -> str:
    """The text with `***` for the user and password of each URL, which proxies may have."""
    return re.sub(_USER, "***@", text)


def gib(size_bytes: float) -> str:
    """Bytes for a reader: `15.3 GiB`, or `8.4 MiB` if it is little."""
    if size_bytes and size_bytes < 2**30 / 10:
        return f"{size_bytes / 2**20:.1f} MiB"
    return f"{size_bytes / 2**30:.1f} GiB"


def system_reason(error: Exception) -> str:
    """Why the system refused, in lower case; another error's own words."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def quoted(text: str, longest: int = 60) -> str:
    """Text of a file for a message: in backticks, short, and harmless to a terminal."""
    short = text if len(text) <= longest else text[:longest] + "…"
    return f"`{CONTROL.sub(lambda match: ascii(match[0])[1:-1], short)}`"


def did_you_mean(word: str, known: Iterable[str], *, of: int = 1) -> str | None:
    """The known word nearest to this one, if any is near; none where it is one `of` over 50."""
    if of > 50:  # so many strangers are none of ours, and guessing takes time
        return None
    from difflib import get_close_matches  # a profile without a misspelt key needs none

    lowered, word = {name.lower(): name for name in known}, word.lower().replace("-", "_")
    found = get_close_matches(word, lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None


class SpecserveError(Exception):
    """The work could not be done. `hint` says what the user can do about it."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        causes: tuple[str, ...] = (),
        findings: tuple[Finding, ...] = (),
        log_path: str | None = None,
        log_tail: tuple[str, ...] = (),
        exit_code: int = 2,
        cause: str = "broken",
    ) -> None:
        self.message = without_user(message)
        super().__init__(self.message)
        self.hint = hint
        self.causes = tuple(map(without_user, causes))
        self.findings = findings
        self.log_path = log_path
        self.log_tail = log_tail
        self.exit_code = exit_code
        self.cause = cause


class UsageError(SpecserveError):
    """The command line asks for something that does not exist."""


class ProfileError(SpecserveError):
    """A profile cannot be used; `findings`: its problems. Exit code 1: a rule says so."""


class FactError(SpecserveError):
    """Something outside (a file, the disk, an installed package, the Hub) is not as it must be.

    `cause` of a model: `broken`; on the Hub `not_found`, `gated`, `unreachable`; `offline` (it is
    not cached); `elsewhere` (a path of another machine); `unsupported` (a bucket, a GGUF file).
    """


class LaunchError(SpecserveError):
    """vLLM did not come up, or died while serving."""


class TrafficError(SpecserveError):
    """A request to a server failed."""


class Interrupted(SpecserveError):
    """A signal ended the work before it was done: exit code 128 and its number."""
