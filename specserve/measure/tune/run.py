"""One tune from its first launch to its confirmation: starts servers, sends prompts, keeps what came."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from specserve.errors import Interrupted, LaunchError, TrafficError
from specserve.measure.bench import rundir
from specserve.measure.bench.arms import Arm
from specserve.measure.bench.driver import Driver, Pass
from specserve.measure.bench.rundir import RunDirectory
from specserve.measure.bench.schedule import Block, arm_order
from specserve.measure.bench.server import Running, connect
from specserve.measure.tune.plan import (
    BASELINE,
    CONFIRMING,
    EXTRA,
    LEAST_ROUNDS,
    LEAST_SHARE,
    ROUNDS,
    Candidate,
    Wish,
    cells,
    confirmation_s,
    confirming,
    measuring_s,
    split,
)
from specserve.measure.tune.result import Choice
from specserve.measure.workloads.load import load, load_warm_up
from specserve.measure.workloads.workload import Prompt, Workload
from specserve.plan.launch import with_port
from specserve.serve import events
from specserve.serve.causes import signal_name
from specserve.serve.process import free_port
from specserve.serve.server import running
from specserve.serve.signals import StopRequest

_WARM_UP_TOKENS = 24
_WARM_UP_LOAD = 8
_EXTRA_SHARE = 0.25
"""A pass at a load between takes about so much of one at a point."""


@dataclass(slots=True)
class Tune:
    """A tune while it runs; a context manager, which ends what still serves.

    Launches are numbered in the order of the wish; the confirmation is the last.
    """

    wish: Wish
    directory: RunDirectory
    on_news: rundir.OnNews
    stop: StopRequest
    fits_two: bool
    """Whether two servers fit at once, so that they can take turns."""
    slots: Sequence[tuple[str, ...]] = ()
    """Accelerators of each of two servers."""
    share: float = 1.0
    """Of the prompts, by the budget."""
    least_share: float = 1.0
    """Of a workload's prompts, the fewest that a pass was sent."""
    passes: list[Pass] = field(default_factory=list)
    chosen: dict[str, tuple[Prompt, ...]] = field(default_factory=dict)
    held_out: dict[str, tuple[Prompt, ...]] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    kv_tokens: dict[str, int] = field(default_factory=dict)
    """Of each server's KV cache."""
    versions: dict[str, str] = field(default_factory=dict)
    host: dict[str, str] = field(default_factory=dict)
    """Where it was measured, of a run that is told again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Candidates that could not be measured, with the reason."""
    notes: list[str] = field(default_factory=list)
    launches: int = 0
    is_interleaved: bool = False
    _stack: ExitStack = field(default_factory=ExitStack)
    _plain: Running | None = None
    """The server without speculation, which stays up for the confirmation where two servers fit at once."""
    _began_s: float = field(default_factory=time.monotonic)
    _confirms: bool = False
    _done: int = 0
    _new: int = 0
    """Passes of this start of the program."""
    _total: int = 1
    _extras: int = 0
    """Passes of `_total` at loads between."""
    _starts_s: list[float] = field(default_factory=list)
    """What each server took to start."""
    _full_s: list[float] = field(default_factory=list)
    """What each pass at a point took, or would have taken with all prompts."""

    def __enter__(self) -> Tune:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def measure(self, candidates: Sequence[Candidate], *, confirms: bool) -> None:
        """Everything that the choice needs. Raises LaunchError, TrafficError, Interrupted; what was measured stays.

        `confirms`: whether a confirmation follows; where its two servers cannot run at once, the one without
        speculation is sent its prompts now.
        """
        self._recall()
        room = self.directory.content.get("room")
        if room is not None:
            self._load(**room)
        self._confirms = confirms
        self._plan(candidates)
        self._launch(0, self.wish.baseline, None, confirms=confirms)
        first: LaunchError | TrafficError | None = None
        for number, each in enumerate(candidates, start=1):
            if each.small and candidates[number - 2].name in self.failed:
                continue  # it only adds to the one before
            try:
                self._launch(number, each.arm, each, confirms=False)
            except (LaunchError, TrafficError) as error:
                first = first or error
                self.failed[each.name] = error.message
                self.on_news(rundir.Noted(f"{each.name} is left out: {error.message}"))
        self._confirms = False
        if first is not None and all(each.small or each.name in self.failed for each in candidates):
            raise first

    def recall(self) -> None:
        """All that a complete run measured, and what it said: nothing is started."""
        self._recall()
        content = self.directory.content
        self.failed = dict(content.get("failed", {}))
        self.notes = list(content.get("notes", []))
        self.versions = dict(content.get("versions", {}))
        self.host = dict(content.get("host", {}))
        self.is_interleaved = bool(content.get("is_interleaved"))

    def _recall(self) -> None:
        self.passes = self.directory.passes()
        self.kv_tokens = dict(self.directory.content.get("kv_tokens", {}))
        self.launches = int(self.directory.content.get("launches", 0))
        self.least_share = float(self.directory.content.get("least_share", 1.0))

    def confirm(self, arm: Arm, *, launch: int) -> None:
        """The chosen server and the one without speculation, turn by turn where both fit, on held-out prompts."""
        blocks = confirming(self.wish, self.held_out, share=self.share)
        both = [self.wish.baseline, arm]
        least = LEAST_ROUNDS * len(self.wish.points())
        if self.is_late():
            blocks = blocks[:least]
        left = sum(not self._is_confirmed(launch, block, each.name) for block in blocks for each in both)
        self._total = self._done + left
        if not left:
            self.is_interleaved = bool(self.directory.content.get("is_interleaved"))
            return
        with self._traffic(f"confirm-{launch}", both) as (stack, driver, servers):
            servers[arm.name] = stack.enter_context(self._server(arm, launch))
            self.is_interleaved = self.fits_two
            if self.is_interleaved:
                servers[BASELINE] = self._plain or stack.enter_context(
                    self._server(self.wish.baseline, launch, slot=1)
                )
            stack.callback(driver.close)
            self.directory.update(is_interleaved=self.is_interleaved)
            self._warm_up(servers, driver)
            for place, block in enumerate(blocks):
                if place >= least and self.is_late():
                    break  # with fewer rounds there would be no interval
                for name in arm_order(block, list(servers)):
                    self._pass(servers[name], driver, block, launch=launch)

    def _is_confirmed(self, launch: int, block: Block, arm: str) -> bool:
        """Whether it was measured; without room for two, the server without speculation was in the first launch."""
        return self._has(launch, block, arm) or (arm == BASELINE and self._has(0, block, arm))

    def launch_of(self, choice: Choice, *, first: int) -> int:
        """The number of the launch that confirms this choice: another one, after a resumption, is another launch."""
        block = json.dumps(choice.speculation, sort_keys=True)
        known = list(self.directory.content.get("confirming", []))
        if block not in known:
            known.append(block)
            self.directory.update(confirming=known)
        return first + known.index(block)

    def share_now(self) -> float:
        """Of the prompts: as planned, and less where passes take longer than the budget has room for."""
        left_s = self.left_s()
        if left_s is None or not self._full_s:
            return self.share
        extras = self._extras - sum(EXTRA <= each.block < CONFIRMING for each in self.passes)
        left = max(1.0, self._total - self._done - (1 - _EXTRA_SHARE) * extras)
        wanted_s = sum(self._full_s) / len(self._full_s) * left
        return min(self.share, max(LEAST_SHARE, left_s / wanted_s))

    def left_s(self) -> float | None:
        """Of the budget, less what the confirmation needs; None without one."""
        if self.wish.budget_s is None:
            return None
        spent_s = float(self.directory.content.get("spent_s", 0.0)) + time.monotonic() - self._began_s
        return self.wish.budget_s - spent_s - self.confirmation_s()

    def confirmation_s(self) -> float:
        """What the fewest rounds of a confirmation to come will take, by what passes and starts took."""
        if not self._confirms or not self._full_s:
            return 0.0
        relative = confirmation_s(self.wish, tokens_per_s=1.0) / measuring_s(self.wish, tokens_per_s=1.0)
        pass_s = sum(self._full_s) / len(self._full_s)
        sent_s = pass_s * len(self.wish.points()) * relative * LEAST_ROUNDS / ROUNDS * self.share
        return sent_s + max(self._starts_s, default=0.0)

    def is_late(self) -> bool:
        """Whether the budget is used up."""
        left_s = self.left_s()
        return left_s is not None and left_s <= 0

    def _plan(self, candidates: Sequence[Candidate]) -> None:
        points = len(self.wish.points())
        self._extras = 2 * sum(len(self.wish.extras(each)) for each in (None, *candidates))
        self._total = points * (1 + len(candidates)) + self._extras
        self._done = len(self.passes)

    def _launch(self, number: int, arm: Arm, candidate: Candidate | None, *, confirms: bool) -> None:
        """One server and its cells, those that are not there yet."""
        if self.chosen and self._is_done(number, arm, candidate, confirms=confirms):
            return
        with self._traffic(f"{arm.name}-{number}", [arm]) as (stack, driver, servers):
            stays = candidate is None and confirms and self.fits_two
            holder = self._stack if stays else stack
            server = holder.enter_context(self._server(arm, number, slot=int(candidate is None)))
            self._plain = server if stays else self._plain
            servers[arm.name] = server
            stack.callback(driver.close)
            if not self.chosen:
                self._prepare(server)
            self._warm_up(servers, driver)
            for place in range(len(cells(self.wish, self.chosen, candidate=candidate))):
                share = self.share_now()
                cell = cells(self.wish, self.chosen, candidate=candidate, share=share)[place]
                if not (cell.is_extra and self.is_late()):
                    self._pass(server, driver, cell.block, launch=number, share=share)
            if confirms and not self.fits_two:
                for block in confirming(self.wish, self.held_out, share=self.share):
                    self._pass(server, driver, block, launch=number)

    def _is_done(self, number: int, arm: Arm, candidate: Candidate | None, *, confirms: bool) -> bool:
        is_late = self.is_late()
        found = cells(self.wish, self.chosen, candidate=candidate, share=self.share)
        wanted = [cell.block for cell in found if not (cell.is_extra and is_late)]
        if confirms and not self.fits_two:
            wanted += confirming(self.wish, self.held_out, share=self.share)
        return all(self._has(number, block, arm.name) for block in wanted)

    def _has(self, launch: int, block: Block, arm: str) -> bool:
        return any((each.launch, each.block, each.arm) == (launch, block.number, arm) for each in self.passes)

    def _pass(
        self, server: Running, driver: Driver, block: Block, *, launch: int, share: float = 1.0
    ) -> None:
        name = server.arm.name
        if self._has(launch, block, name):
            return
        done, _ = server.run(driver, block, launch=launch)
        if block.number < EXTRA:
            self._full_s.append(done.duration_s / share)
            self._keep_share(block)
        self.directory.append(done)
        self.passes.append(done)
        self._done += 1
        self._new += 1
        spent_s = time.monotonic() - self._began_s
        left_s = spent_s / self._new * max(0, self._total - self._done)
        rate = done.output_tokens / done.duration_s if done.duration_s else 0.0
        self.on_news(rundir.Passed(name, done.point, rate, self._done, max(self._total, self._done), left_s))

    def _keep_share(self, block: Block) -> None:
        sent = len({item.prompt.id for item in block.items})
        share = sent / len(self.chosen[block.point.workload])
        if share < self.least_share:
            self.least_share = share
            self.directory.update(least_share=share)

    @contextmanager
    def _traffic(
        self, name: str, arms: Sequence[Arm]
    ) -> Iterator[tuple[ExitStack, Driver, dict[str, Running]]]:
        """The load generator for some servers, which ends before they do."""
        servers: dict[str, Running] = {}
        with ExitStack() as stack:
            keys = [arm.api_key_env for arm in arms if arm.api_key_env]
            log = self.directory.log(f"load-generator-{name}")
            driver = Driver(log_path=log, on_tick=lambda: self._tick(servers), key_variables=keys)
            stack.callback(driver.close)
            yield stack, driver, servers
            self.on_news(rundir.Stopping(tuple(servers)))
        self.versions["load generator"] = f"vLLM {driver.vllm}"

    @contextmanager
    def _server(self, arm: Arm, launch: int, *, slot: int = 0) -> Iterator[Running]:
        assert arm.plan is not None
        plan = with_port(arm.plan, free_port(arm.plan.host))
        if len(self.slots) > 1:
            plan = replace(plan, env={**plan.env, "CUDA_VISIBLE_DEVICES": ",".join(self.slots[slot])})
        log_path = self.directory.log(f"{arm.name}-{launch}")
        began = time.monotonic()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.PhaseStarted):
                self.on_news(rundir.Starting(arm.name, str(event.phase), str(log_path)))

        self.launches += 1
        self.directory.update(launches=self.launches)
        with running(plan, log_path=log_path, on_event=on_event, stop=self.stop) as server:
            self._starts_s.append(time.monotonic() - began)
            self.on_news(rundir.Ready(arm.name, self._starts_s[-1]))
            if server.figures.kv_cache_tokens:
                self.kv_tokens[arm.name] = server.figures.kv_cache_tokens
                self.directory.update(kv_tokens=self.kv_tokens)
            with connect(arm, server.url, check=server.check) as connected:
                yield connected

    def _prepare(self, server: Running) -> None:
        """The prompts, as this server can take them; kept, so that a resumed tune sends the same."""
        room = {"chat": server.abilities.has_chat, "max_model_len": server.abilities.max_model_len}
        self._load(chat=server.abilities.has_chat, max_model_len=server.abilities.max_model_len)
        self.directory.update(room=room)

    def _load(self, *, chat: bool, max_model_len: int | None) -> None:
        for name in self.wish.workloads:
            source = self.wish.sources.get(name, name)
            found = load(source, chat=chat, max_model_len=max_model_len, max_tokens=self.wish.max_tokens)
            self.workloads[name] = found
            self.chosen[name], self.held_out[name] = split(found.prompts, self.wish.prompts)
            if self.chosen[name] == self.held_out[name]:
                self.notes.append(f"{name}: too few prompts to keep some for the confirmation")
            self.notes += [f"{name}: {remark}" for remark in found.remarks]

    def _warm_up(self, servers: Mapping[str, Running], driver: Driver) -> None:
        kinds = {each.is_chat: each for each in self.workloads.values()}
        for name, server in servers.items():
            self.on_news(rundir.WarmingUp(name))
            for workload in kinds.values():
                warm = load_warm_up(workload, max_model_len=server.abilities.max_model_len)
                prompts = [replace(each, max_tokens=_WARM_UP_TOKENS) for each in warm.prompts]
                for temperature in self.wish.temperatures:
                    server.warm_up(driver, prompts, concurrency=_WARM_UP_LOAD, temperature=temperature)

    def _tick(self, servers: Mapping[str, Running]) -> None:
        if self.stop.count:
            number = self.stop.signal or 15
            raise Interrupted(f"stopped by {signal_name(number)}", signal_number=number)
        for server in servers.values():
            server.check()
