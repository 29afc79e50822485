"""Servers to be measured, started here or running, and the load generator that asks them."""

from __future__ import annotations

import hashlib
import math
import os
import queue
import re
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from specserve import __version__
from specserve.diagnostics import Notices
from specserve.errors import Interrupted, TrafficError
from specserve.hardware.accelerators import gpus, selected
from specserve.hardware.host import free_port
from specserve.measure.bench.passes import (
    Block,
    OnProgress,
    Pass,
    Progress,
    Request,
    RunDirectory,
    read_passes,
)
from specserve.measure.bench.plan import Variant
from specserve.measure.bench.result import Point
from specserve.measure.verdict import LAUNCH_SPREAD
from specserve.measure.workloads import Workload, load, load_warm_up
from specserve.metrics import Acceptance, EngineMetrics, Metrics, since, since_by_engine
from specserve.plan.launch import with_port
from specserve.serve import events
from specserve.serve.causes import signal_name
from specserve.serve.client import Client, RequestRefused, endpoint
from specserve.serve.process import JsonChild, StopRequest
from specserve.serve.server import running
from specserve.vllm.versions import installed

if TYPE_CHECKING:
    from specserve.measure.bench.plan import BenchPlan
    from specserve.measure.tune.plan import TunePlan

CHILD = (sys.executable, "-P", "-m", "specserve.engine.benchmark_driver")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
REST_S = 1.1
"""So long after its last step a server's workers still spin, and take their cores from the next.

Source: vLLM 0.32, vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition:
`busy_loop_s: float = 1`.
"""
_KEYS = ("OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN")


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of the requests that were sent."""

    duration_s: float
    client_cpu: float
    requests: tuple[Request, ...]


class LoadGenerator:
    """vLLM's load generator in a process of its own."""

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
        self._count = 0
        self._last_url = ""
        self._last_end_s = 0.0
        self._is_ready = False
        self._child = JsonChild(command, env=_environment(key_variables), log_path=log_path)

    def wait_ready(self) -> None:
        """Wait until it has imported vLLM. Raises LaunchError."""
        while not self._is_ready:
            self._is_ready = self._next()["event"] == "ready"

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
            if message is None or (message["event"] == "failed" and "pass" not in message):
                self._child.wait()
                said = str(message["error"]) if message is not None else ""
                error = self._child.death("running its load generator", said=said)
                if said and "No module named 'vllm" in said:
                    error.hint = "in a clone, `pip install '.[vllm]'` or `make setup` installs it"
                raise error
            return message


def _environment(key_variables: Sequence[str]) -> dict[str, str]:
    """Return ours, without keys that no variant needs, and without a proxy for this host."""
    env = {key: os.environ[key] for key in os.environ if key in key_variables or key not in _KEYS}
    proxies = [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost,::1"]
    none = ",".join(filter(None, proxies))
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    return env | quiet | {"no_proxy": none, "NO_PROXY": none}


def _read_request(message: Mapping[str, Any]) -> Request:
    """Return a request as the load generator reports it."""
    names = ("id", "ok", "error", "prompt_tokens", "output_tokens", "ttft_s", "latency_s")
    fields = {name: message[name] for name in names}
    return Request(**fields, steps=_read_steps(message["speculation"]))


def _read_steps(summary: object) -> tuple[tuple[int, int], ...]:
    """Return the ordered steps of `detailed` metrics; none of anything else."""
    try:
        accepted, drafted = summary["per_step_accepted"], summary["per_step_drafted"]  # type: ignore[index]
        return tuple(zip(map(int, accepted), map(int, drafted), strict=True))
    except (KeyError, TypeError, ValueError):
        return ()


_WARM_UP_TOKENS = 32
_WARM_UP_LOADS = (4, 64)
"""Concurrency of the warm-up, at least and at most."""
_COUNTERS_S = 2.0
_NONCE = secrets.token_hex(8)
"""Drawn for each run of the program: all else in a salt is alike, and servers outlive a run."""


def described(platform: str | None) -> dict[str, str]:
    """What the servers run on; the cores alone if all of them are at URLs (None)."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if platform is None:
        return {"cores": str(cores)}
    cards = selected(gpus(), devices=None, environ=os.environ) if platform != "cpu" else []
    name, vllm = f"{len(cards)}x{cards[0].name}" if cards else platform, installed()
    found = {"cores": str(cores), "accelerator": name, "specserve": __version__}
    return found | {"vllm": vllm.version if vllm is not None else "?"}


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a run reports progress, and how its result becomes files."""

    notices: Notices
    open_view: Callable[[], AbstractContextManager[OnProgress]]
    files: Callable[[Any], Mapping[str, str]]
    """Text by file name."""


@dataclass(slots=True)
class Running:
    """A variant's server, ready for passes. `check` raises if it is gone."""

    variant: Variant
    url: str
    model: str
    """As it is asked for."""
    check: Callable[[], None]
    client: Client

    def has_chat(self) -> bool:
        """Return whether the target has a chat template."""
        said = [{"role": "user", "content": "Hello"}]
        body = {"model": self.model, "max_tokens": 1, "messages": said}
        with suppress(RequestRefused):
            return bool(self.client.post("chat/completions", body))
        return False

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
            about_it = {"id": f"{prompt.id}#{index}", "max_tokens": prompt.max_tokens}
            requests.append({**about_it, "extra_body": own, **prompt.body})
        before = self.client.metrics()
        traffic = {
            "model": self.model,
            "endpoint": "chat/completions" if "messages" in requests[0] else "completions",
            "requests": requests,
            "concurrency": point.concurrency or None,
            "request_rate": point.request_rate,
            "seed": block.seed,
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
        acceptance, queue_s, preemptions = self._gained(before, len(requests))
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
            launch_spread=LAUNCH_SPREAD[plan.platform] if (plan := self.variant.plan) else 0.0,
        )

    def _gained(
        self, before: Metrics | None, requests: int
    ) -> tuple[Acceptance | None, float | None, int]:
        """Return the acceptance, the seconds that requests waited, and how many were preempted."""
        now = None
        if before is not None:
            now = self.client.metrics_after(before, requests=requests, limit_s=_COUNTERS_S)
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


def connect(variant: Variant, url: str, *, check: Callable[[], None]) -> Running:
    """Return a server that answers. Raises TrafficError."""
    place = endpoint(url, api_key_env=variant.api_key_env)
    client = Client(place)
    model = variant.plan.model if variant.plan is not None else client.first_model()
    return Running(variant, place.root, model, check, client)


class Measurement:
    """Passes on servers. What an earlier session of the same run measured is there at once."""

    def __init__(
        self,
        plan: BenchPlan | TunePlan,
        directory: RunDirectory,
        on_progress: OnProgress,
        stop: StopRequest,
    ) -> None:
        content = directory.content
        self.directory, self.on_progress, self._stop = directory, on_progress, stop
        self.points, self._plan = plan.points, plan
        self.passes: list[Pass] = read_passes(directory.path)
        self.notes: list[str] = content.setdefault("notes", [])
        self.models: dict[str, str] = content.setdefault("models", {})
        """By variant, what its server serves."""
        self.kv_tokens: dict[str, int] = content.setdefault("kv_tokens", {})
        """By variant, tokens of its KV cache."""
        self.kv_requests: dict[str, float] = content.setdefault("kv_requests", {})
        """By variant, requests of `max_model_len` that its KV cache holds."""
        self.launches = int(content.get("launches", 0))
        self.workloads: dict[str, Workload] = {}
        self.passes_left = 0
        """Passes that are still to come, as far as is known."""
        self.ends_s = math.inf
        """When the time for measuring is up, on the monotonic clock."""
        self._took_s: dict[tuple[str, Point], list[float]] = defaultdict(list)
        self.starts_s: dict[str, list[float]] = defaultdict(list)
        """By variant, how long each start of its server took."""
        if "room" in content:
            self._load_workloads(**content["room"])

    def note(self, text: str) -> None:
        """Keep a note for the result, and report it now."""
        if text not in self.notes:
            self.notes.append(text)
            self.directory.update()
            self.on_progress(Progress(f"note: {text}", is_note=True))

    @contextmanager
    def session(
        self,
        variants: Sequence[Variant],
        *,
        label: str,
        beside: Mapping[str, Running] | None = None,
    ) -> Iterator[tuple[dict[str, Running], LoadGenerator]]:
        """Servers by variant, warmed up, and the load generator. `beside`: those that go on."""
        servers = dict(beside or {})
        with ExitStack() as stack:
            generator = LoadGenerator(
                log_path=self.directory.log(f"load-generator-{label}"),
                on_tick=lambda: self._tick(servers),
                key_variables=[each.api_key_env for each in variants if each.api_key_env],
            )
            stack.callback(generator.close)
            for variant in variants:
                if variant.name not in servers:
                    server = self.server(variant, label=label)
                    servers[variant.name] = stack.enter_context(server)
            # before the servers end: without their clients, they have nothing to drain
            stack.callback(generator.close)
            generator.wait_ready()
            if not self.workloads:  # once, so that every later session sends the same prompts
                lengths = [
                    most
                    for each in servers.values()
                    if (most := each.client.max_model_len(each.model))
                ]
                room: dict[str, Any] = {"max_model_len": min(lengths, default=None)}
                room["chat"] = all(each.has_chat() for each in servers.values())
                self._load_workloads(**room)
                self.directory.update(room=room)
            for name, server_there in servers.items():
                self.models[name] = server_there.model
                self.on_progress(Progress(f"warming up {name}"))
                self._warm_up(server_there, generator)
            self.directory.update(launches=self.launches)
            yield servers, generator

    @contextmanager
    def server(self, variant: Variant, *, label: str) -> Iterator[Running]:
        """The variant's server: started here, or the one at its URL."""
        if variant.plan is None:
            yield connect(variant, variant.url or "", check=lambda: None)
            return
        plan, began_s = with_port(variant.plan, free_port(variant.plan.host)), time.monotonic()
        log_path = self.directory.log(
            f"{re.sub(r'[^a-zA-Z0-9_.-]', '-', variant.name)[:60]}-{label}"
        )

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.Progress) and not event.took_s:
                self.on_progress(Progress(f"starting {variant.name}: {event.phase}"))

        self.launches += 1
        with running(plan, log_path=log_path, on_event=on_event, stop=self._stop) as server:
            self.starts_s[variant.name].append(time.monotonic() - began_s)
            text = f"{variant.name} is ready after {self.starts_s[variant.name][-1]:.0f}s"
            self.on_progress(Progress(text, is_note=True))
            if server.kv_cache_tokens:
                self.kv_tokens[variant.name] = server.kv_cache_tokens
            if requests := server.logged.get("concurrency"):
                self.kv_requests[variant.name] = requests
            yield connect(variant, plan.url, check=server.check)

    def send_block(
        self, server: Running, generator: LoadGenerator, block: Block, *, launch: int
    ) -> Pass:
        """Send a block, and keep the pass; it replaces an earlier one of the same block."""
        began_s = time.monotonic()
        done = server.run(generator, block, launch=launch)
        self.directory.append(done)
        self.passes = [each for each in self.passes if each.key != done.key] + [done]
        ended_s = time.monotonic()
        self._took_s[server.variant.name, block.point].append(ended_s - began_s)
        self.passes_left = max(0, self.passes_left - 1)
        mean_s = fmean(took_s for each in self._took_s.values() for took_s in each)
        rate = done.output_tokens / done.duration_s if done.duration_s else 0.0
        self.on_progress(
            Progress(
                f"{done.variant}, {done.point}: {rate:.1f} tokens/s",
                done=len(self.passes),
                total=len(self.passes) + self.passes_left,
                left_s=max(0.0, min(self.passes_left * mean_s, self.ends_s - ended_s)),
            )
        )
        return done

    def _load_workloads(self, *, chat: bool, max_model_len: int | None) -> None:
        """Load the prompts that fit. Raises UsageError if they are others than before."""
        for name in dict.fromkeys(point.workload for point in self.points):
            workload = load(
                self._plan.sources.get(name, name),
                chat=chat,
                max_model_len=max_model_len,
                max_tokens=self._plan.max_tokens,
                limit=self._plan.limit,
            )
            self.directory.pin(f"the prompts of `{name}`", workload.sha256)
            self.workloads[name] = workload
            for remark in workload.remarks:
                self.note(f"{name}: {remark}")

    def _warm_up(self, server: Running, generator: LoadGenerator) -> None:
        """Other prompts at the highest load and each temperature make graphs and caches."""
        least, most = _WARM_UP_LOADS
        load = min(max(least, *(math.ceil(point.load) for point in self.points)), most)
        kind = next(iter(self.workloads.values()))
        warm = load_warm_up(kind, max_model_len=server.client.max_model_len(server.model))
        prompts = [
            replace(each, max_tokens=min(each.max_tokens, _WARM_UP_TOKENS)) for each in warm.prompts
        ] * math.ceil(load / len(warm.prompts))
        for temperature in dict.fromkeys(point.temperature for point in self.points):
            block = Block(-1, Point("warm-up", temperature, load), tuple(prompts), seed=0)
            server.run(generator, block, launch=-1)

    def _tick(self, servers: Mapping[str, Running]) -> None:
        """A few times a second while the load generator works."""
        if self._stop.count:
            number = self._stop.signal or 15
            raise Interrupted(f"stopped by {signal_name(number)}", exit_code=128 + number)
        for server in servers.values():
            server.check()
