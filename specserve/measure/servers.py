"""The measuring engine: starts servers, warms them up, sends passes, keeps them, resumes."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from specserve.diagnostics import Notices
from specserve.errors import Interrupted
from specserve.hardware.host import free_port
from specserve.measure.bench.blocks import Block
from specserve.measure.bench.generator import LoadGenerator
from specserve.measure.bench.passes import Pass
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import OnProgress, Progress, RunDirectory, read_passes
from specserve.measure.bench.server import Running, connect
from specserve.measure.bench.variants import Variant
from specserve.measure.workloads.load import load, load_warm_up
from specserve.measure.workloads.workload import Workload
from specserve.plan.launch import with_port
from specserve.serve import events
from specserve.serve.server import running
from specserve.serve.signals import StopRequest, signal_name

_WARM_UP_TOKENS = 32
_WARM_UP_LOADS = (4, 64)
"""Concurrency of the warm-up, at least and at most."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where a run reports progress, and how its result becomes files."""

    notices: Notices
    open_view: Callable[[], AbstractContextManager[OnProgress]]
    files: Callable[[Any], Mapping[str, str]]
    """Text by file name."""


class Measurement:
    """Passes on servers. What an earlier session of the same run measured is there at once."""

    def __init__(
        self,
        directory: RunDirectory,
        on_progress: OnProgress,
        stop: StopRequest,
        *,
        points: Sequence[Point],
        sources: Mapping[str, str],
        max_tokens: int | None = None,
        limit: int | None = None,
    ) -> None:
        """`sources`: what a workload is loaded from, by its name. `limit`: its prompts, at most."""
        content = directory.content
        self.directory, self.on_progress, self._stop = directory, on_progress, stop
        self.points, self._sources = points, sources
        self._max_tokens, self._limit = max_tokens, limit
        self.passes: list[Pass] = read_passes(directory.path)
        self.notes: list[str] = content.setdefault("notes", [])
        self.models: dict[str, str] = content.setdefault("models", {})
        """By variant, what its server serves."""
        self.kv_tokens: dict[str, int] = content.setdefault("kv_tokens", {})
        """By variant, tokens of its KV cache."""
        self.launches = int(content.get("launches", 0))
        self.workloads: dict[str, Workload] = {}
        self.passes_left = 0
        """Passes that are still to come, as far as is known."""
        self.ends_s = math.inf
        """When the time for measuring is up, on the monotonic clock."""
        self._took_s: dict[tuple[str, Point], list[float]] = defaultdict(list)
        self._starts_s: list[float] = []
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
            if any(variant.plan is not None for variant in variants):
                stack.callback(self.on_progress, Progress("stopping the servers"))
            generator.wait_ready()
            if not self.workloads:  # once, so that every later session sends the same prompts
                lengths = [each.max_model_len for each in servers.values() if each.max_model_len]
                room = {
                    "chat": all(each.has_chat() for each in servers.values()),
                    "max_model_len": min(lengths, default=None),
                }
                self._load_workloads(**room)  # type: ignore[arg-type]
                self.directory.update(room=room)
            for name, server_there in servers.items():
                self.on_progress(Progress(f"warming up {name}"))
                self._warm_up(server_there, generator)
            yield servers, generator

    @contextmanager
    def server(self, variant: Variant, *, label: str) -> Iterator[Running]:
        """The variant's server: started here, or the one at its URL."""
        if variant.plan is None:
            assert variant.url is not None
            yield self._connected(variant, variant.url, check=lambda: None)
            return
        plan = with_port(variant.plan, free_port(variant.plan.host))
        file = "".join(char if char.isalnum() or char in "-_." else "-" for char in variant.name)
        log_path, began_s = self.directory.log(f"{file[:60]}-{label}"), time.monotonic()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.PhaseStarted):
                self.on_progress(Progress(f"starting {variant.name}: {event.phase}"))

        self.launches += 1
        self.directory.update(launches=self.launches)
        with running(plan, log_path=log_path, on_event=on_event, stop=self._stop) as server:
            self._starts_s.append(time.monotonic() - began_s)
            text = f"{variant.name} is ready after {self._starts_s[-1]:.0f}s"
            self.on_progress(Progress(text, is_note=True))
            if server.figures.kv_cache_tokens:
                self.kv_tokens[variant.name] = server.figures.kv_cache_tokens
                self.directory.update()
            yield self._connected(variant, server.url, check=server.check)

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
        count = len(self.passes)
        self.on_progress(
            Progress(
                f"{done.variant}, {done.point}: {rate:.1f} tokens/s",
                done=count,
                total=count + self.passes_left,
                left_s=max(0.0, min(self.passes_left * mean_s, self.ends_s - ended_s)),
            )
        )
        return done

    def _connected(self, variant: Variant, url: str, *, check: Callable[[], None]) -> Running:
        server = connect(variant, url, check=check)
        if self.models.get(variant.name) != server.model:
            self.models[variant.name] = server.model
            self.directory.update()
        return server

    def _load_workloads(self, *, chat: bool, max_model_len: int | None) -> None:
        """Load the prompts that fit. Raises UsageError if they are others than before."""
        for name in dict.fromkeys(point.workload for point in self.points):
            workload = load(
                self._sources.get(name, name),
                chat=chat,
                max_model_len=max_model_len,
                max_tokens=self._max_tokens,
                limit=self._limit,
            )
            self.directory.pin(f"the prompts of `{name}`", workload.sha256)
            self.workloads[name] = workload
            for remark in workload.remarks:
                self.note(f"{name}: {remark}")

    def _warm_up(self, server: Running, generator: LoadGenerator) -> None:
        """Other prompts at the highest load and each temperature make graphs and caches."""
        least, most = _WARM_UP_LOADS
        concurrency = min(max([least, *(point.concurrency for point in self.points)]), most)
        for workload in {each.is_chat: each for each in self.workloads.values()}.values():
            warm = load_warm_up(workload, max_model_len=server.max_model_len)
            prompts = [
                replace(each, max_tokens=min(each.max_tokens, _WARM_UP_TOKENS))
                for each in warm.prompts
            ]
            for temperature in dict.fromkeys(point.temperature for point in self.points):
                server.warm_up(generator, prompts, concurrency=concurrency, temperature=temperature)

    def _tick(self, servers: Mapping[str, Running]) -> None:
        """A few times a second while the load generator works."""
        if self._stop.count:
            number = self._stop.signal or 15
            raise Interrupted(f"stopped by {signal_name(number)}", signal_number=number)
        for server in servers.values():
            server.check()
