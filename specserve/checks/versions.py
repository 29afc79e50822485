"""The vLLM versions that a profile is judged against, and how a finding names those it holds for."""

from __future__ import annotations

from collections.abc import Sequence

from specserve.checks.rule import Context
from specserve.diagnostics import Severity
from specserve.plan.support import known_versions


def judged(ctx: Context) -> tuple[str, ...]:
    """The known minors of the profile's range, oldest first; for a range of newer ones, the newest known."""
    return ctx.versions or known_versions()[-1:]


def only_in(ctx: Context, found: Sequence[str]) -> tuple[str, ...]:
    """The note on a finding that holds for some of the judged versions only."""
    versions = judged(ctx)
    if len(found) == len(versions):
        return ()
    return (f"the profile's range holds vLLM {', '.join(versions)}; this is so in {', '.join(found)}",)


def severity_in(ctx: Context, found: Sequence[str]) -> Severity | None:
    """A warning where a profile names no versions and the newest is free of an error; else None, the rule's own.

    Nobody said that such a profile is for the old ones.
    """
    return Severity.WARNING if ctx.profile.vllm is None and judged(ctx)[-1] not in found else None
