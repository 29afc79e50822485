"""Passes made up for tests: every figure is told by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from specserve.measure.bench.passes import Pass, Request
from specserve.measure.bench.plan import Variant
from specserve.measure.bench.result import Point
from specserve.metrics import Acceptance
from specserve.plan.launchplan import LaunchPlan

POINT = Point("chat", 0.0, 1)


def request(
    prompt: str = "p1",
    *,
    tokens: int = 11,
    ttft_s: float = 0.1,
    latency_s: float = 1.1,
    error: str | None = None,
) -> Request:
    return Request(
        id=prompt,
        ok=error is None,
        prompt_tokens=20,
        output_tokens=0 if error else tokens,
        ttft_s=ttft_s,
        latency_s=latency_s,
        error=error,
    )


def made(
    variant: str,
    block: int,
    *requests: Request,
    point: Point = POINT,
    launch: int = 0,
    duration_s: float | None = None,
    client_cpu: float = 0.1,
    acceptance: Acceptance | None = None,
) -> Pass:
    each = requests or (request(f"p{block}"),)
    seconds = sum(item.latency_s for item in each) if duration_s is None else duration_s
    return Pass(launch, block, point, variant, seconds, client_cpu, each, acceptance)


def blocks_of(
    variant: str, seconds: Sequence[float], *, tokens: int = 100, point: Point = POINT, launch: int = 0
) -> list[Pass]:
    """One pass of one request for each time."""
    return [
        made(
            variant,
            number,
            request(f"p{number}#0", tokens=tokens, latency_s=cost),
            point=point,
            launch=launch,
            acceptance=Acceptance(40, 160, 60) if variant != "baseline" else None,
        )
        for number, cost in enumerate(seconds)
    ]


def planned(
    name: str,
    platform: str = "cuda",
    *,
    cache: int | None = None,
    env: Mapping[str, str] | None = None,
    is_baseline: bool = False,
) -> Variant:
    """A server that would be started."""
    plan = LaunchPlan(
        name=name, fingerprint=name, vllm="0.33", platform=platform, argv=("vllm", "serve", "m", "--port", "1"),
        env=env or {}, engine_kwargs={"kv_cache_memory_bytes": cache}, host="127.0.0.1", port=1, model="m",
        stall_timeout_s=1, shutdown_timeout_s=1,
    )  # fmt: skip
    return Variant(name, plan, is_baseline=is_baseline)


class Connected(SimpleNamespace):
    """In the place of a server's connection: what it is made of."""
