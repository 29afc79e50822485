"""A variant's server while it runs: what it can, and the passes that it is sent."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.bench.blocks import Block
from specserve.measure.bench.generator import LoadGenerator, Sent
from specserve.measure.bench.passes import Pass
from specserve.measure.bench.result import Point
from specserve.measure.bench.variants import Variant
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import Acceptance, since, since_by_engine
from specserve.metrics.prometheus import EngineMetrics, Metrics
from specserve.serve.client import Client
from specserve.serve.requests import RequestRefused, endpoint

_COUNTERS_S = 2.0
_NONCE = secrets.token_hex(8)
"""Drawn for each run of the program: all else in a salt is alike, and servers outlive a run."""


@dataclass(slots=True)
class Running:
    """A variant's server, ready for passes. `check` raises if it is gone."""

    variant: Variant
    url: str
    model: str
    """As it is asked for."""
    max_model_len: int | None
    check: Callable[[], None]
    _client: Client = field(repr=False, kw_only=True)

    def has_chat(self) -> bool:
        """Return whether the target has a chat template."""
        said = [{"role": "user", "content": "Hello"}]
        try:
            body = {"model": self.model, "max_tokens": 1, "messages": said}
            self._client.post("chat/completions", body, model=self.model)
        except RequestRefused:
            return False
        return True

    def warm_up(
        self,
        generator: LoadGenerator,
        prompts: Sequence[Prompt],
        *,
        concurrency: int,
        temperature: float,
    ) -> None:
        """Send prompts whose answers are not kept, and wait until the counters hold them."""
        many = [*prompts] * math.ceil(concurrency / len(prompts))
        requests = [_request(prompt, index, {}) for index, prompt in enumerate(many)]
        self._send(generator, requests, Point("", temperature, concurrency))

    def run(self, generator: LoadGenerator, block: Block, *, launch: int) -> Pass:
        """Send a block and return what was measured. Raises TrafficError without an answer."""
        point = block.point
        # another variant may be at the same URL; a mark is as long for every variant
        mark = hashlib.sha256(self.variant.name.encode()).hexdigest()[:8]
        requests, copies = [], Counter[str]()
        for index, prompt in enumerate(block.prompts):
            copies[prompt.id] += 1
            about = f"{launch}.{block.number}.{block.seed}.{copies[prompt.id]}"
            own: dict[str, Any] = {"cache_salt": f"{_NONCE}.{about}.{mark}"}
            if point.temperature > 0:
                own["seed"] = (block.seed + index) % 2**31
            requests.append(_request(prompt, index, own))
        sent, before, now = self._send(generator, requests, point)
        acceptance, queue_s, preemptions = _gained(before, now)
        return Pass(
            launch=launch,
            block=block.number,
            point=point,
            variant=self.variant.name,
            duration_s=sent.duration_s,
            client_cpu=sent.client_cpu,
            requests=sent.requests,
            acceptance=acceptance,
            queue_s=queue_s,
            preemptions=preemptions,
        )

    def _send(
        self, generator: LoadGenerator, requests: Sequence[dict[str, Any]], point: Point
    ) -> tuple[Sent, Metrics | None, Metrics | None]:
        """Return what was sent, and the counters before and after."""
        before = self._client.metrics()
        traffic = {
            "model": self.model,
            "endpoint": "chat/completions" if "messages" in requests[0] else "completions",
            "requests": requests,
            "concurrency": point.concurrency,
            "extra_body": {"temperature": point.temperature},
            "api_key_env": self.variant.api_key_env,
            "ssl_verify": self.variant.plan is None,  # that of a server of ours is not checked
        }
        sent = generator.send(self.url, traffic)
        self.check()
        if not any(request.ok for request in sent.requests):
            why = next((each.error for each in sent.requests if each.error), "no answer")
            place = f"`{self.variant.name}` at {self.url}"
            raise TrafficError(f"{place} answered none of {len(requests)} requests: {why}")
        now = None
        if before is not None:
            count = len(sent.requests)
            now = self._client.metrics_after(before, requests=count, limit_s=_COUNTERS_S)
        return sent, before, now


def _gained(
    before: Metrics | None, now: Metrics | None
) -> tuple[Acceptance | None, float | None, int]:
    """Return the acceptance, the seconds that requests waited, and how many were preempted."""
    if before is None or now is None:
        return None, None, 0
    drafted = since_by_engine(before.acceptance, now=now.acceptance) if now.speculates else None
    engines = (
        since(before.engines.get(name, EngineMetrics()).counters, now=engine.counters)
        for name, engine in now.engines.items()
    )
    gains = [each for each in engines if each is not None]
    waited = [each.queue_s.sum for each in gains if each.queue_s.count]
    preemptions = sum(each.preemptions for each in gains)
    acceptance = drafted if drafted and drafted.drafts else None
    return acceptance, sum(waited) if waited else None, preemptions


def _request(prompt: Prompt, index: int, own: dict[str, Any]) -> dict[str, Any]:
    """Return a request for the load generator. `own`: fields of its body beside the prompt."""
    about = {"id": f"{prompt.id}#{index}", "max_tokens": prompt.max_tokens, "extra_body": own}
    return {**about, **prompt.body}


def connect(variant: Variant, url: str, *, check: Callable[[], None]) -> Running:
    """Return a server that answers, once it was asked what it can. Raises TrafficError."""
    place = endpoint(url, api_key_env=variant.api_key_env)
    client = Client(place)
    model = variant.plan.model if variant.plan is not None else client.first_model()

    return Running(
        variant=variant if variant.model else replace(variant, model=model),
        url=place.root,
        model=model,
        max_model_len=client.max_model_len(model),
        check=check,
        _client=client,
    )
