"""Passes: what one variant answered to one block of requests."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.measure.bench.result import Point
from specserve.metrics.counters import Acceptance


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds."""

    id: str
    """The prompt's, with its place in the block: `ID#7`."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    latency_s: float
    error: str | None = None
    acceptance: Acceptance | None = None
    """That of this request alone, if the server reports it (`per_request_spec_decode_metrics`)."""
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each step, in order, if it reports them (`detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id."""
        return self.id.rsplit("#", 1)[0]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one variant."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    variant: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None if it shows none, or does not speculate."""
    queue_s: float | None = None
    """What its requests waited before they ran, all together; None if the server does not say."""
    preemptions: int = 0
    """How often a request had to give its place in the KV cache back."""

    @property
    def answered(self) -> list[Request]:
        """The requests whose answers came whole."""
        return [request for request in self.requests if request.ok]

    @property
    def output_tokens(self) -> int:
        """Tokens of the answers that came whole."""
        return sum(request.output_tokens for request in self.answered)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.variant
