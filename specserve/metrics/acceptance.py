"""Acceptance of draft tokens, from vLLM's counters or one request's summary. Pure; knows no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, zip_longest


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What vLLM's four speculation counters say (vllm 0.33, v1/spec_decode/metrics.py).

    `drafts` counts verification steps of a request with at least one draft token, and
    `accepted_per_position[i]` those of them whose draft token i (from 0) was accepted.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of the drafted tokens, 0 to 1; None where nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification step, the target's own included: 1 to K + 1; None without a step."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of the steps that accepted draft token i. Where K varies, later positions read low."""
        return tuple(count / self.drafts for count in self.accepted_per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Share of the steps in which draft token i was accepted, of those that accepted the one before it.

        None after a position that nothing reached.
        """
        reached = (self.drafts, *self.accepted_per_position)
        pairs = zip(reached, self.accepted_per_position, strict=False)
        return tuple(accepted / before if before else None for before, accepted in pairs)

    def __add__(self, other: Acceptance) -> Acceptance:
        """Two engines, or two stretches of time, taken together."""
        return Acceptance(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            accepted_per_position=tuple(
                mine + theirs
                for mine, theirs in zip_longest(
                    self.accepted_per_position, other.accepted_per_position, fillvalue=0
                )
            ),
        )


def gain(before: Acceptance, *, now: Acceptance) -> Acceptance | None:
    """What one engine's counters gained; None where one of them dropped: the engine was started anew."""
    pairs = zip_longest(before.accepted_per_position, now.accepted_per_position, fillvalue=0)
    gains = (
        now.drafts - before.drafts,
        now.draft_tokens - before.draft_tokens,
        now.accepted_tokens - before.accepted_tokens,
        *(after - earlier for earlier, after in pairs),
    )
    return Acceptance(gains[0], gains[1], gains[2], gains[3:]) if min(gains) >= 0 else None


def total(parts: Iterable[Acceptance]) -> Acceptance:
    """The sum over several engines or requests."""
    return sum(parts, Acceptance())


def since(before: Acceptance, *, now: Acceptance) -> Acceptance:
    """What one engine's counters gained. A counter that dropped means a restart: then all of `now` is."""
    found = gain(before, now=now)
    return now if found is None else found


def since_by_engine(before: Mapping[str, Acceptance], *, now: Mapping[str, Acceptance]) -> Acceptance:
    """The gain of several engines, each compared with itself; an engine that is gone adds nothing."""
    return total(since(before.get(engine, Acceptance()), now=counts) for engine, counts in now.items())


def of_request(summary: object) -> Acceptance | None:
    """Read `metrics.speculative_decoding` of one response; None where it is not what vLLM writes.

    Its `acceptance_histogram[j]` counts the steps that accepted exactly j draft tokens
    (vllm 0.33, v1/metrics/stats.py, RequestSpecDecodeMetrics).
    """
    if not isinstance(summary, Mapping):
        return None
    numbers = [
        summary.get(key) for key in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    ]
    histogram = summary.get("acceptance_histogram")
    if not isinstance(histogram, list) or not all(_is_count(value) for value in (*numbers, *histogram)):
        return None
    at_least = list(accumulate(reversed(histogram)))[::-1]
    drafts, draft_tokens, accepted_tokens = (int(str(value)) for value in numbers)
    return Acceptance(drafts, draft_tokens, accepted_tokens, tuple(at_least[1:]))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
