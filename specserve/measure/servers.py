"""The measuring engine: starts servers, warms them up, sends passes, keeps them, resumes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import Interrupted
from specserve.hardware.host import free_port
from specserve.measure.bench import rundir
from specserve.measure.bench.plan import Block
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import Pass, RunDirectory
from specserve.measure.bench.traffic import Driver, Running, connect
from specserve.measure.bench.variants import Variant
from specserve.measure.workloads.load import load, load_warm_up
from specserve.measure.workloads.workload import Prompt, Workload, digest
from specserve.plan.launch import with_port
from specserve.serve import events
from specserve.serve.server import running
from specserve.serve.signals import StopRequest, signal_name

_WARM_UP_TOKENS = 32
_WARM_UP_LOADS = (4, 64)
"""Concurrency of the warm-up, at least and at most."""
GENERATOR = "load generator"


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a run reports progress, and how its result becomes files."""

    notices: Notices
    open_view: Callable[[], AbstractContextManager[rundir.OnNews]]
    files: Callable[[Any], Mapping[str, str]]
    """Text by file name."""


class Measurement:
    """Passes on servers. What an earlier session of the same run measured is there at once."""

    def __init__(
        self,
        directory: RunDirectory,
        on_news: rundir.OnNews,
        stop: StopRequest,
        *,
        points: Sequence[Point],
        sources: Mapping[str, str],
        max_tokens: int | None = None,
        limit: int | None = None,
    ) -> None:
        """`sources`: what a workload is loaded from, by its name. `limit`: its prompts, at most."""
        content = directory.content
        self.directory, self.on_news, self._stop = directory, on_news, stop
        self.points, self._sources = points, sources
        self._max_tokens, self._limit = max_tokens, limit
        self.passes: list[Pass] = directory.passes()
        self.notes: list[str] = content.setdefault("notes", [])
        self.models: dict[str, str] = content.setdefault("models", {})
        """By variant, what its server serves."""
        self.kv_tokens: dict[str, int] = content.setdefault("kv_tokens", {})
        """By variant, tokens of its KV cache."""
        self.launches = int(content.get("launches", 0))
        generator = content.get("conditions", {}).get(f"the {GENERATOR}")
        self.versions: dict[str, str] = {GENERATOR: generator} if generator else {}
        self.workloads: dict[str, Workload] = {}
        self.expected: Counter[tuple[str, Point]] = Counter()
        """Passes that are still to come, by variant and point."""
        self.launches_left = 0
        self._counted: dict[str, int | None] | None = content.get("tokens")
        """Tokens of prompts by the first servers' count; None if one of them cannot count."""
        self._took_s: dict[tuple[str, Point], list[float]] = defaultdict(list)
        self._starts_s: list[float] = []
        self._has_begun = False
        if "room" in content:
            self._load({}, **content["room"])

    def note(self, text: str) -> None:
        """Keep a note for the result, and report it now."""
        if text not in self.notes:
            self.notes.append(text)
            self.directory.update()
            self.on_news(rundir.Noted(f"note: {text}"))

    @property
    def host(self) -> dict[str, str]:
        """The machine that the run began on."""
        return dict(self.directory.content.get("host", {}))

    @contextmanager
    def session(
        self,
        variants: Sequence[Variant],
        *,
        label: str,
        devices: Mapping[str, tuple[str, ...]] | None = None,
        beside: Mapping[str, Running] | None = None,
    ) -> Iterator[tuple[dict[str, Running], Driver]]:
        """Servers by variant, warmed up, and the load generator. `beside`: those that go on."""
        self._begin()
        servers = dict(beside or {})
        with ExitStack() as stack:
            driver = Driver(
                log_path=self.directory.log(f"load-generator-{label}"),
                on_tick=lambda: self._tick(servers),
                key_variables=[variant.api_key_env for variant in variants if variant.api_key_env],
            )
            stack.callback(driver.close)
            for variant in variants:
                if variant.name not in servers:
                    own = (devices or {}).get(variant.name)
                    server = self.server(variant, label=label, devices=own)
                    servers[variant.name] = stack.enter_context(server)
            # before the servers end: without their clients, they have nothing to drain
            stack.callback(driver.close)
            if any(
                variant.plan is not None and variant.name not in (beside or {})
                for variant in variants
            ):
                stack.callback(self.on_news, rundir.Doing("stopping the servers"))
            driver.wait_ready()
            self.versions[GENERATOR] = f"vLLM {driver.vllm}"
            self.directory.require(f"the {GENERATOR}", self.versions[GENERATOR])
            self._prepare(servers)
            for name, running_one in servers.items():
                self.on_news(rundir.Doing(f"warming up {name}"))
                self._warm_up(running_one, driver)
            yield servers, driver

    @contextmanager
    def server(
        self, variant: Variant, *, label: str, devices: tuple[str, ...] | None = None
    ) -> Iterator[Running]:
        """The variant's server: started here, or the one at its URL."""
        self._begin()
        if variant.plan is None:
            assert variant.url is not None
            with self._connected(variant, variant.url, check=lambda: None) as connected:
                yield connected
            return
        plan = with_port(variant.plan, free_port(variant.plan.host))
        if devices is not None:
            plan = replace(plan, env={**plan.env, "CUDA_VISIBLE_DEVICES": ",".join(devices)})
        file = "".join(char if char.isalnum() or char in "-_." else "-" for char in variant.name)
        log_path, began_s = self.directory.log(f"{file[:60]}-{label}"), time.monotonic()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.PhaseStarted):
                self.on_news(rundir.Doing(f"starting {variant.name}: {event.phase}"))
            elif isinstance(event, events.PhaseGoesOn):
                text = f"starting {variant.name}: {event.phase}, {event.took_s:.0f}s so far"
                self.on_news(rundir.Doing(text))

        self.directory.require(f"vLLM of `{variant.name}`", plan.vllm)
        self.launches += 1
        self.launches_left -= 1
        self.directory.update(launches=self.launches)
        with running(plan, log_path=log_path, on_event=on_event, stop=self._stop) as server:
            self._starts_s.append(time.monotonic() - began_s)
            self.on_news(rundir.Noted(f"{variant.name} is ready after {self._starts_s[-1]:.0f}s"))
            if server.figures.kv_cache_tokens:
                self.kv_tokens[variant.name] = server.figures.kv_cache_tokens
                self.directory.update()
            with self._connected(variant, server.url, check=server.check) as connected:
                yield connected

    def send_block(self, server: Running, driver: Driver, block: Block, *, launch: int) -> Pass:
        """Send a block, and keep the pass; it replaces an earlier one of the same block."""
        began_s, key = time.monotonic(), (server.variant.name, block.point)
        done = server.run(driver, block, launch=launch)
        self.directory.append(done)
        self.passes = [each for each in self.passes if each.key != done.key] + [done]
        self._took_s[key].append(time.monotonic() - began_s)
        self.expected[key] -= 1
        rate = done.output_tokens / done.duration_s if done.duration_s else 0.0
        count, left = len(self.passes), (+self.expected).total()
        left_s = self._left_s() if left else 0.0
        self.on_news(rundir.Passed(done.variant, done.point, rate, count, count + left, left_s))
        return done

    def _left_s(self) -> float:
        """Estimate what is to come by this session's passes and starts, by point if it can."""
        every = fmean(took_s for each in self._took_s.values() for took_s in each)
        left_s = max(0, self.launches_left) * (fmean(self._starts_s) if self._starts_s else 0.0)
        for key, count in (+self.expected).items():
            left_s += count * (fmean(self._took_s[key]) if self._took_s[key] else every)
        return left_s

    def _begin(self) -> None:
        """Count a resumption, once."""
        if self.passes and not self._has_begun:
            self.directory.update(resumed=int(self.directory.content.get("resumed", 0)) + 1)
        self._has_begun = True

    def _connected(self, variant: Variant, url: str, *, check: Callable[[], None]) -> Running:
        server = connect(variant, url, check=check)
        if self.models.get(variant.name) != server.variant.model:
            self.models[variant.name] = server.variant.model
            self.directory.update()
        if not server.abilities.takes_salt:
            why = "its prefix cache may hold prompts of earlier blocks"
            self.note(f"`{variant.name}` does not take `cache_salt`: {why}")
        if server.abilities.is_sglang:
            why = "its acceptance is not seen, because its metrics hold averages, not counts"
            self.note(f"`{variant.name}` is SGLang: its speed is measured; {why}")
        return server

    def _prepare(self, servers: Mapping[str, Running]) -> None:
        """Make the workloads fit: once, so that every later session sends the same prompts."""
        if self.workloads:
            return
        abilities = [each.abilities for each in servers.values()]
        lengths = [each.max_model_len for each in abilities if each.max_model_len is not None]
        chat, most = all(each.has_chat for each in abilities), min(lengths, default=None)
        if all(each.can_count for each in abilities):
            self._counted = {}
        self._load(servers, chat=chat, max_model_len=most)
        room = {"chat": chat, "max_model_len": most}
        self.directory.update(room=room, tokens=self._counted)

    def _load(
        self, servers: Mapping[str, Running], *, chat: bool, max_model_len: int | None
    ) -> None:
        def count(prompt: Prompt) -> int | None:
            """By the server that makes most of it; kept, so that a resumed run sends the same."""
            assert self._counted is not None
            key = digest([prompt])[:16]
            if key not in self._counted:
                counts = [server.count(prompt) for server in servers.values()]
                known = [each for each in counts if each is not None]
                is_known = counts and len(known) == len(counts)
                self._counted[key] = max(known) if is_known else None
            return self._counted[key]

        for name in dict.fromkeys(point.workload for point in self.points):
            workload = load(
                self._sources.get(name, name),
                chat=chat,
                max_model_len=max_model_len,
                count_prompt=count if self._counted is not None else None,
                max_tokens=self._max_tokens,
                limit=self._limit,
            )
            self.directory.require(f"the prompts of `{name}`", workload.sha256)
            self.workloads[name] = workload
            for remark in workload.remarks:
                self.note(f"{name}: {remark}")

    def _warm_up(self, server: Running, driver: Driver) -> None:
        """Other prompts at the highest load and each temperature make graphs and caches."""
        least, most = _WARM_UP_LOADS
        load = min(max([least, *(point.concurrency for point in self.points)]), most)
        for workload in {each.is_chat: each for each in self.workloads.values()}.values():
            warm = load_warm_up(workload, max_model_len=server.abilities.max_model_len)
            prompts = [
                replace(each, max_tokens=min(each.max_tokens, _WARM_UP_TOKENS))
                for each in warm.prompts
            ]
            for temperature in dict.fromkeys(point.temperature for point in self.points):
                server.warm_up(driver, prompts, concurrency=load, temperature=temperature)

    def _tick(self, servers: Mapping[str, Running]) -> None:
        """A few times a second while the load generator works."""
        if self._stop.count:
            number = self._stop.signal or 15
            raise Interrupted(f"stopped by {signal_name(number)}", signal_number=number)
        for server in servers.values():
            server.check()
