"""What one pass measured, request by request, as it is kept in a run directory. Judges nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserve.measure.bench.result import Point
from specserve.metrics.acceptance import Acceptance, of_request


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds, `start_s` since its pass began."""

    id: str
    """Of the prompt; `id#2` is the second copy of it in the same pass. Behind the last `#` stands the copy alone."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    start_s: float
    ttft_s: float
    latency_s: float
    chunk_gaps_ms: tuple[float, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    text_sha256: str = ""
    acceptance: Acceptance | None = None
    """Of this request alone, where the server tells it (`per_request_spec_decode_metrics`)."""
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each verification step, in order, where the server tells them (`detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id, whichever copy it was."""
        return self.id.rpartition("#")[0] if "#" in self.id else self.id

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one arm."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    arm: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None where it shows none, or does not speculate."""
    preemptions: int | None = None

    @property
    def output_tokens(self) -> int:
        """Of the answers that came whole."""
        return sum(request.output_tokens for request in self.requests if request.ok)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.arm


def of_driver(message: Mapping[str, Any]) -> Request:
    """A request as the load generator reports it (specserve/engine/benchmark_driver.py)."""
    return Request(
        id=message["id"],
        ok=message["ok"],
        prompt_tokens=message["prompt_tokens"],
        output_tokens=message["output_tokens"],
        start_s=message["start_s"],
        ttft_s=message["ttft_s"],
        latency_s=message["latency_s"],
        chunk_gaps_ms=tuple(message["chunk_gaps_ms"]),
        finish_reason=message["finish_reason"],
        error=message["error"],
        text_sha256=message["text_sha256"],
        acceptance=of_request(message["speculation"]),
        steps=_steps(message["speculation"]),
    )


def _steps(summary: object) -> tuple[tuple[int, int], ...]:
    """The ordered steps of `detailed` metrics; none of anything else."""
    if not isinstance(summary, Mapping):
        return ()
    accepted, drafted = summary.get("per_step_accepted"), summary.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return ()
    pairs = tuple(zip(accepted, drafted, strict=True))
    is_right = all(
        type(took) is int and type(offered) is int and 0 <= took <= offered for took, offered in pairs
    )
    return pairs if is_right else ()


def pass_json(done: Pass) -> dict[str, Any]:
    """Without its requests, which stand in lines of their own."""
    content = {name: getattr(done, name) for name in ("launch", "block", "arm", "duration_s", "client_cpu")}
    content |= {"point": dataclasses.asdict(done.point), "requests": len(done.requests)}
    content |= {"acceptance": _acceptance_json(done.acceptance), "preemptions": done.preemptions}
    return content


def request_json(request: Request, *, done: Pass) -> dict[str, Any]:
    """A request, with what tells its pass."""
    place = {
        "launch": done.launch,
        "block": done.block,
        "arm": done.arm,
        "point": dataclasses.asdict(done.point),
    }
    content = dataclasses.asdict(request) | {"acceptance": _acceptance_json(request.acceptance)}
    return place | content


def read_pass(content: Mapping[str, Any], *, requests: tuple[Request, ...]) -> Pass:
    """Back from JSON. Raises ValueError, KeyError or TypeError where it is not what was written."""
    return Pass(
        launch=int(content["launch"]),
        block=int(content["block"]),
        point=read_point(content["point"]),
        arm=str(content["arm"]),
        duration_s=float(content["duration_s"]),
        client_cpu=float(content["client_cpu"]),
        requests=requests,
        acceptance=_read_acceptance(content["acceptance"]),
        preemptions=content.get("preemptions"),
    )


def read_request(content: Mapping[str, Any]) -> Request:
    """Back from JSON. Raises ValueError, KeyError or TypeError where it is not what was written."""
    names = {field.name for field in dataclasses.fields(Request)}
    known = {name: value for name, value in content.items() if name in names}
    known["chunk_gaps_ms"] = tuple(known["chunk_gaps_ms"])
    known["steps"] = tuple((int(took), int(offered)) for took, offered in known.get("steps", ()))
    known["acceptance"] = _read_acceptance(known.get("acceptance"))
    return Request(**known)


def read_point(content: Mapping[str, Any]) -> Point:
    """Back from JSON."""
    return Point(**content)


def _acceptance_json(acceptance: Acceptance | None) -> dict[str, Any] | None:
    return None if acceptance is None else dataclasses.asdict(acceptance)


def _read_acceptance(content: Mapping[str, Any] | None) -> Acceptance | None:
    if content is None:
        return None
    fields = dict(content)
    return Acceptance(**fields | {"accepted_per_position": tuple(fields["accepted_per_position"])})
