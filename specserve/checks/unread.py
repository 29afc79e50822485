"""Models that could not be read: what is a finding, and what leaves the check incomplete. Reads nothing itself."""

from __future__ import annotations

from typing import Literal

from specserve.diagnostics import Code, Finding, Severity, Skipped
from specserve.errors import FactError
from specserve.profile.schema import Profile

Cause = Literal["by_request", "unreachable", "unsupported"]

UNREADABLE = Code(
    "SD290",
    "unreadable-model",
    Severity.ERROR,
    """A model of the profile is not there, may not be read, or is broken.

    ## Why is this bad?
    vLLM ends with `Invalid repository ID or local directory specified`, with a 401, or with the parser's
    words about the file; for the draft, after it has looked at the target.

    ## Example
        target: {model: ./no-such-directory}

    ## Use instead
        target: {model: ./llama}

    ## Source
    vllm/transformers_utils/config.py, `Invalid repository ID or local directory specified`
    """,
)
_DEFINITE = frozenset({"not_found", "gated", "broken"})
_CAUSES: dict[str, Cause] = {"offline": "by_request", "unsupported": "unsupported"}


def unreadable(error: FactError, profile: Profile, *, path: str) -> Finding | None:
    """The finding for a model at a path of the profile; None where it is not known to be bad."""
    if error.cause not in _DEFINITE:
        return None
    return Finding(
        UNREADABLE.code,
        UNREADABLE.name,
        UNREADABLE.severity,
        error.message,
        profile.span(path),
        notes=error.causes,
        help=error.hint,
    )


def skipped(
    error: FactError, profile: Profile, *, codes: tuple[str, ...], is_published: bool = False
) -> Skipped:
    """The group of rules that could not run because of it. `is_published`: memory is estimated all the same."""
    known = ", so memory rests on its published configuration" if is_published else ""
    reason = f"{error.message}{known}" + (f"; {error.hint}" if error.hint else "")
    cause = _CAUSES.get(error.cause, "unreachable")
    return Skipped(profile.file, "models", codes, reason, cause)
