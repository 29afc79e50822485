"""The blocks of speculation that a rule goes through: `speculation` and each alternative. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context
from specserve.profile.schema import Speculation


def blocks(ctx: Context) -> Iterator[tuple[str, Speculation]]:
    """Each block with its dotted path, `speculation` first."""
    if ctx.profile.speculation:
        yield "speculation", ctx.profile.speculation
    for name, block in ctx.profile.alternatives.items():
        yield f"alternatives.{name}", block
