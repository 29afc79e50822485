"""Acceptance in words. Does not know where the counts come from."""

from __future__ import annotations

from specserve.metrics.acceptance import Acceptance


def acceptance_line(run: Acceptance | None) -> str:
    """One line: the rate, the mean length, the rate per position; or why there is none."""
    if run is None:
        return "no speculation"
    rate, length = run.acceptance_rate, run.mean_acceptance_length
    if rate is None or length is None:
        return "speculation is on, but nothing was drafted"
    positions = " ".join(f"{share:.2f}" for share in run.per_position)
    return f"acceptance {rate:.2f}, mean acceptance length {length:.2f}, per position {positions}"


def acceptance_json(run: Acceptance | None) -> dict[str, object] | None:
    """The same for scripts; None without speculation, null figures where nothing was drafted."""
    if run is None:
        return None
    return {
        "acceptance_rate": run.acceptance_rate,
        "mean_acceptance_length": run.mean_acceptance_length,
        "acceptance_rate_per_position": list(run.per_position),
        "num_drafts": run.drafts,
        "num_draft_tokens": run.draft_tokens,
        "num_accepted_tokens": run.accepted_tokens,
    }
