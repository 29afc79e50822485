"""The vLLM versions that a profile is judged against, and how a finding names those it holds for."""

from __future__ import annotations

from collections.abc import Sequence

from specserve.checks.rule import Context
from specserve.diagnostics import Severity
from specserve.vllm.fact import minor
from specserve.vllm.versions import known_versions


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
    """A warning if a profile names no versions and the newest is free of an error; else None, the rule's own.

    Nobody said that such a profile is for the older ones, except for the version that is about to run it.
    """
    own = [version for version in found if ctx.plan is not None and minor(version) == minor(ctx.plan.vllm)]
    is_asked = ctx.profile.vllm is not None or judged(ctx)[-1] in found or bool(own)
    return None if is_asked else Severity.WARNING
