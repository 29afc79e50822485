"""One arm while it runs: what its server can, and passes sent to it. Compares nothing, keeps nothing."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.bench.arms import Arm
from specserve.measure.bench.driver import Driver, Pass, Request, Sent
from specserve.measure.bench.result import Point
from specserve.measure.bench.schedule import Block, Item
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import since_by_engine
from specserve.metrics.prometheus import Metrics
from specserve.serve.client import Client
from specserve.serve.requests import RequestRefused, endpoint

_COUNTERS_S = 2.0
_NONCE = secrets.token_hex(8)
"""Of this run of the program: everything else in a salt is alike in every run, and a server may outlive the run."""
_HELLO = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server said about itself."""

    model: str
    max_model_len: int | None
    has_chat: bool
    """Whether the target has a chat template."""
    takes_salt: bool
    """Whether requests can be kept from sharing prefixes (`cache_salt`, vLLM 0.9 and later)."""
    can_count: bool = False
    """Whether it tells how many tokens a request is (`/tokenize`)."""
    is_sglang: bool = False


@dataclass(slots=True)
class Running:
    """An arm's server, ready for passes; a context manager. `check` raises if it is gone."""

    arm: Arm
    url: str
    abilities: Abilities
    check: Callable[[], None]
    _client: Client = field(repr=False, kw_only=True)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.close()

    def warm_up(
        self, driver: Driver, prompts: Sequence[Prompt], *, concurrency: int, temperature: float
    ) -> None:
        """Send prompts whose answers are not kept, and wait until the counters hold them."""
        items = [
            Item(prompt, copy) for copy in range(1, -(-concurrency // len(prompts)) + 1) for prompt in prompts
        ]
        requests = [self._request(item, None) for item in items]
        before = self._client.metrics()
        sent = self._send(driver, requests, Point("", temperature, concurrency))
        self._refuse_silence(sent.requests)
        self._settled(before, len(sent.requests))

    def run(self, driver: Driver, block: Block, *, launch: int) -> Pass:
        """One block. Raises TrafficError if no request was answered."""
        point = block.point
        # another arm may be at the same URL; a mark is as long for every arm
        mark = hashlib.sha256(self.arm.name.encode()).hexdigest()[:8]
        requests = []
        for index, item in enumerate(block.items):
            salt = f"{_NONCE}.{launch}.{block.number}.{block.seed}.{item.copy}.{mark}"
            shared = salt if self.abilities.takes_salt else None
            seed = (block.seed + index) % 2**31 if point.temperature > 0 else None
            requests.append(self._request(item, shared, seed=seed))
        before = self._client.metrics()
        sent = self._send(driver, requests, point, seed=block.seed)
        self._refuse_silence(sent.requests)
        now = self._settled(before, len(sent.requests))
        gained = None
        if before is not None and now is not None and now.speculates:
            gained = since_by_engine(before.acceptance, now=now.acceptance)
        return Pass(
            launch=launch,
            block=block.number,
            point=point,
            arm=self.arm.name,
            duration_s=sent.duration_s,
            client_cpu=sent.client_cpu,
            requests=sent.requests,
            acceptance=gained if gained and gained.drafts else None,
        )

    def _request(self, item: Item, salt: str | None, *, seed: int | None = None) -> dict[str, Any]:
        extra = {"cache_salt": salt, "seed": seed}
        return {
            "id": item.id,
            "max_tokens": item.prompt.max_tokens,
            "extra_body": {name: value for name, value in extra.items() if value is not None},
            **self._content(item.prompt),
        }

    def _content(self, prompt: Prompt) -> dict[str, Any]:
        if prompt.messages is not None:
            return {"messages": [dict(part) for part in prompt.messages]}
        return {"prompt": prompt.text}

    def _send(
        self, driver: Driver, requests: Sequence[dict[str, Any]], point: Point, *, seed: int = 0
    ) -> Sent:
        traffic = {
            "model": self.abilities.model,
            "endpoint": "chat/completions" if "messages" in requests[0] else "completions",
            "requests": requests,
            "concurrency": point.concurrency,
            "request_rate": point.request_rate,
            "seed": seed,
            "extra_body": {"temperature": point.temperature},
            "api_key_env": self.arm.api_key_env,
            "ssl_verify": self.arm.plan is None,  # the certificate of a server of ours is not checked
        }
        return driver.send(self.url, traffic)

    def count(self, prompt: Prompt) -> int | None:
        """Tokens of a prompt with its template, as the server counts; None if it does not tell."""
        if not self.abilities.can_count:
            return None
        body = self._content(prompt) | {"model": self.abilities.model}
        return self._client.count_tokens(body)

    def _refuse_silence(self, requests: Sequence[Request]) -> None:
        self.check()
        if any(request.ok for request in requests):
            return
        why = next((request.error for request in requests if request.error), "no answer")
        raise TrafficError(
            f"`{self.arm.name}` at {self.url} answered none of {len(requests)} requests: {why}"
        )

    def _settled(self, before: Metrics | None, requests: int) -> Metrics | None:
        """The counters with so many requests more: they hold one a moment after its last chunk."""
        deadline = time.monotonic() + _COUNTERS_S
        while before is not None and (now := self._client.metrics()) is not None:
            if now.finished_requests >= before.finished_requests + requests or time.monotonic() > deadline:
                return now
            time.sleep(0.02)
        return None


def connect(arm: Arm, url: str, *, check: Callable[[], None]) -> Running:
    """Ask a server that answers what it can. Raises TrafficError, UsageError."""
    place = endpoint(url, api_key_env=arm.api_key_env)
    client = Client(place)
    models = client.models()
    if not models:
        raise TrafficError(f"the server at {place.root} serves no model")
    wanted = arm.plan.model if arm.plan is not None else models[0]
    abilities = Abilities(wanted, client.max_model_len(wanted), has_chat=True, takes_salt=True)
    abilities = replace(abilities, is_sglang=client.is_sglang(wanted))
    abilities = _tried(client, abilities)
    named = arm if arm.model else replace(arm, model=wanted)
    return Running(named, place.root, abilities, check, _client=client)


def _tried(client: Client, abilities: Abilities) -> Abilities:
    """By one token each: is there a chat template, is a salt taken? And are tokens counted?"""
    body = {"model": abilities.model, "max_tokens": 1, "temperature": 0}
    try:
        client.post("chat/completions", {**body, "messages": _HELLO}, model=abilities.model)
    except RequestRefused:  # without a template, or without that endpoint
        abilities = replace(abilities, has_chat=False)
    hello = {**body, "prompt": "Hello"}
    try:
        client.post("completions", {**hello, "cache_salt": "specserve"}, model=abilities.model)
    except RequestRefused:
        client.post("completions", hello, model=abilities.model)
        abilities = replace(abilities, takes_salt=False)
    counted = client.count_tokens({"model": abilities.model, "prompt": "Hello"})
    return replace(abilities, can_count=counted is not None)
