"""A variant's server while it runs, vLLM's load generator as a child, and what a pass measured."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import queue
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specserve.errors import LaunchError, TrafficError
from specserve.measure.bench.plan import Block, Item
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass, Request
from specserve.measure.bench.variants import Variant
from specserve.measure.workloads.workload import Prompt
from specserve.metrics.counters import Acceptance, of_request, since, since_by_engine
from specserve.metrics.prometheus import EngineMetrics, Metrics
from specserve.serve.client import Client
from specserve.serve.logs import read_end
from specserve.serve.process import JsonChild
from specserve.serve.requests import RequestRefused, endpoint

CHILD = (sys.executable, "-P", "-m", "specserve.engine.benchmark_driver")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
_START_LIMIT_S = 300.0
REST_S = 1.1
"""So long after its last step a server's workers still spin, and take their cores from the next.

Source: vLLM 0.32, vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition:
`busy_loop_s: float = 1`.
"""
_KEYS = ("OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN")
_REQUEST_FIELDS = {each.name for each in dataclasses.fields(Request)}


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of the requests that were sent."""

    duration_s: float
    client_cpu: float
    requests: tuple[Request, ...]


class Driver:
    """vLLM's load generator in a process of its own; a context manager, so that it ends with us."""

    def __init__(
        self,
        *,
        log_path: Path,
        on_tick: Callable[[], None],
        key_variables: Sequence[str] = (),
        command: Sequence[str] = CHILD,
    ) -> None:
        """`on_tick` is called a few times a second while we wait; it may raise, to break off."""
        self._on_tick = on_tick
        self._log_path = log_path
        self._count = 0
        self._last_url = ""
        self._last_end_s = 0.0
        self.vllm = ""
        """Its version, once it is ready."""
        self._child = JsonChild(command, env=_environment(key_variables), log_path=log_path)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Wait until it has imported vLLM. Raises LaunchError."""
        deadline = time.monotonic() + _START_LIMIT_S
        while not self.vllm:
            message = self._next()
            if message["event"] == "ready":
                self.vllm = str(message["vllm"])
            elif time.monotonic() > deadline:
                why = "vLLM's load generator did not start"
                raise LaunchError(why, log_path=str(self._log_path))

    def send(self, url: str, traffic: Mapping[str, Any]) -> Sent:
        """Send a pass and wait for its answers; before it, for the last server to fall idle.

        `traffic`: what the load generator reads (specserve/engine/benchmark_driver.py). Raises
        TrafficError, LaunchError and what `on_tick` raises.
        """
        self.wait_ready()
        if self._last_url not in ("", url):
            while (left_s := self._last_end_s + REST_S - time.monotonic()) > 0:
                self._on_tick()
                time.sleep(min(left_s, _TICK_S))
        self._count += 1
        self._child.tell({"pass": str(self._count), "url": url, **traffic})
        requests = []
        while (message := self._next())["event"] == "request":
            requests.append(_read_request(message))
        self._last_url, self._last_end_s = url, time.monotonic()
        if message["event"] == "failed":
            why = message["error"]
            raise TrafficError(f"the load generator could not send to {url}: {why}")
        return Sent(message["duration_s"], message["client_cpu"], tuple(requests))

    def close(self) -> None:
        """End it at once: its requests are aborted by that, and its servers idle again."""
        self._child.close()

    def _next(self) -> dict[str, Any]:
        while True:
            self._on_tick()
            try:
                message = self._child.receive(_TICK_S)
            except queue.Empty:
                continue
            if message is None or (message["event"] == "failed" and message["pass"] is None):
                raise self._death(message)
            return message

    def _death(self, message: Mapping[str, Any] | None) -> LaunchError:
        self._child.wait()
        lines = tuple(line.text for line in read_end(self._log_path)[-20:])
        last = lines[-1] if lines else "it printed nothing"
        why = message["error"] if message is not None else last
        missing = "No module named" in why and "vllm" in why
        hint = "it is a part of vLLM: in a clone, `pip install '.[vllm]'` or `make setup`"
        return LaunchError(
            f"vLLM's load generator ended: {why}",
            log_path=str(self._log_path),
            log_tail=lines,
            hint=hint if missing else None,
        )


def _environment(key_variables: Sequence[str]) -> dict[str, str]:
    """Return ours, without keys that no variant needs, and without a proxy for this host."""
    keep = {name for name in os.environ if name in key_variables or name not in _KEYS}
    env = {name: os.environ[name] for name in keep}
    proxies = [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost,::1"]
    none = ",".join(filter(None, proxies))
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    return env | quiet | {"no_proxy": none, "NO_PROXY": none}


def _read_request(message: Mapping[str, Any]) -> Request:
    """Return a request as the load generator reports it."""
    summary = message["speculation"]
    known = {name: value for name, value in message.items() if name in _REQUEST_FIELDS}
    known["chunk_gaps_ms"] = tuple(message["chunk_gaps_ms"])
    return Request(**known, acceptance=of_request(summary), steps=_read_steps(summary))


def _read_steps(summary: object) -> tuple[tuple[int, int], ...]:
    """Return the ordered steps of `detailed` metrics; none of anything else."""
    if not isinstance(summary, Mapping):
        return ()
    accepted, drafted = summary.get("per_step_accepted"), summary.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list):
        return ()
    pairs = tuple(zip(accepted, drafted, strict=False))
    is_right = len(accepted) == len(drafted) and all(
        type(took) is type(given) is int and 0 <= took <= given for took, given in pairs
    )
    return pairs if is_right else ()


_COUNTERS_S = 2.0
_NONCE = secrets.token_hex(8)
"""Of this run of the program: all else in a salt is alike in every run, and servers outlive it."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server said about itself."""

    model: str
    max_model_len: int | None
    has_chat: bool
    """Whether the target has a chat template."""
    takes_salt: bool
    """Whether requests can be kept from sharing prefixes (`cache_salt`)."""
    can_count: bool = False
    """Whether it tells how many tokens a request is (`/tokenize`)."""
    is_sglang: bool = False


@dataclass(slots=True)
class Running:
    """A variant's server, ready for passes; a context manager. `check` raises if it is gone."""

    variant: Variant
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
        copies = range(1, -(-concurrency // len(prompts)) + 1)
        requests = [_request(Item(prompt, copy)) for copy in copies for prompt in prompts]
        self._send(driver, requests, Point("", temperature, concurrency))

    def run(self, driver: Driver, block: Block, *, launch: int) -> Pass:
        """Send a block and return what was measured. Raises TrafficError without an answer."""
        point = block.point
        # another variant may be at the same URL; a mark is as long for every variant
        mark = hashlib.sha256(self.variant.name.encode()).hexdigest()[:8]
        requests = []
        for index, item in enumerate(block.items):
            own: dict[str, Any] = {}
            if self.abilities.takes_salt:
                about = f"{launch}.{block.number}.{block.seed}.{item.copy}"
                own["cache_salt"] = f"{_NONCE}.{about}.{mark}"
            if point.temperature > 0:
                own["seed"] = (block.seed + index) % 2**31
            requests.append(_request(item, own))
        sent, before, now = self._send(driver, requests, point)
        return Pass(
            launch,
            block.number,
            point,
            self.variant.name,
            sent.duration_s,
            sent.client_cpu,
            sent.requests,
            *_gained(before, now),
        )

    def _send(
        self, driver: Driver, requests: Sequence[dict[str, Any]], point: Point
    ) -> tuple[Sent, Metrics | None, Metrics | None]:
        """Return what was sent, and the counters before and after."""
        before = self._client.metrics()
        traffic = {
            "model": self.abilities.model,
            "endpoint": "chat/completions" if "messages" in requests[0] else "completions",
            "requests": requests,
            "concurrency": point.concurrency,
            "extra_body": {"temperature": point.temperature},
            "api_key_env": self.variant.api_key_env,
            "ssl_verify": self.variant.plan is None,  # that of a server of ours is not checked
        }
        sent = driver.send(self.url, traffic)
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

    def count(self, prompt: Prompt) -> int | None:
        """Return the tokens of a prompt with its template; None if the server does not tell."""
        if not self.abilities.can_count:
            return None
        return self._client.count_tokens({**prompt.body, "model": self.abilities.model})


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


def _request(item: Item, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a request for the load generator. `own`: fields of its body beside the prompt."""
    about = {"id": item.id, "max_tokens": item.prompt.max_tokens, "extra_body": dict(own or {})}
    return {**about, **item.prompt.body}


def connect(variant: Variant, url: str, *, check: Callable[[], None]) -> Running:
    """Return a server that answers, once it was asked what it can. Raises TrafficError."""
    place = endpoint(url, api_key_env=variant.api_key_env)
    client = Client(place)
    model = variant.plan.model if variant.plan is not None else client.first_model()

    def post(path: str, **fields: Any) -> None:
        body = {"model": model, "max_tokens": 1, "temperature": 0, **fields}
        client.post(path, body, model=model)

    def takes(path: str, **fields: Any) -> bool:
        try:
            post(path, **fields)
        except RequestRefused:  # without a template, or that endpoint or field
            return False
        return True

    has_chat = takes("chat/completions", messages=[{"role": "user", "content": "Hello"}])
    takes_salt = takes("completions", prompt="Hello", cache_salt="specserve")
    if not takes_salt:
        post("completions", prompt="Hello")
    abilities = Abilities(
        model=model,
        max_model_len=client.max_model_len(model),
        has_chat=has_chat,
        takes_salt=takes_salt,
        is_sglang=client.is_sglang(model),
        can_count=client.count_tokens({"model": model, "prompt": "Hello"}) is not None,
    )
    known = variant if variant.model else replace(variant, model=model)
    return Running(known, place.root, abilities, check, _client=client)
