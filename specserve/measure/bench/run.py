"""One benchmark from its first launch to its last pass: starts servers, sends blocks, keeps both. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.errors import Interrupted, SpecserveError, UsageError
from specserve.measure.bench import rundir
from specserve.measure.bench.arms import Arm, Session
from specserve.measure.bench.driver import Driver, Pass
from specserve.measure.bench.result import Point
from specserve.measure.bench.rundir import PROMPTS, RunDirectory
from specserve.measure.bench.schedule import Block, Sizes, arm_order, blocks
from specserve.measure.bench.server import Running, connect
from specserve.measure.workloads.load import load, load_warm_up
from specserve.measure.workloads.workload import Prompt, Workload, digest
from specserve.plan.launch import with_port
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import events
from specserve.serve.causes import signal_name
from specserve.serve.process import free_port
from specserve.serve.server import running
from specserve.serve.signals import StopRequest

WARM_UP_TOKENS = 32
_WARM_UP_MOST = 64
LOOPBACK = "127.0.0.1"
GENERATOR = "load generator"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured."""

    arms: tuple[Arm, ...]
    """The one that the others are compared with first."""
    sessions: tuple[Session, ...]
    points: tuple[Point, ...]
    sizes: Sizes
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files, by the name of their workload."""
    max_tokens: int | None = None
    limit: int | None = None
    """Prompts of a workload."""
    ignore_eos: bool = False
    budget_s: float | None = None
    """Of measuring; launches come on top. Blocks that would begin later are left out."""
    keeps_texts: bool = False
    still: Callable[[Block, Sequence[Pass]], Collection[str]] | None = None
    """Which arms a block is still wanted of, by what is there; None: of all. Asked when its turn comes."""


@dataclass(slots=True)
class Bench:
    """A benchmark while it runs."""

    wish: Wish
    directory: RunDirectory
    on_news: rundir.OnNews
    stop: StopRequest
    workloads: dict[str, Workload] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    """By arm, what a server at a URL serves."""
    is_cut: bool = False
    """Whether the budget ended it."""
    _spent_s: float = 0.0
    _new: int = 0
    _tokens: dict[str, int | None] | None = None
    """Of prompts, as the first servers counted them; None where they did not."""
    _servers: Mapping[str, Running] = field(default_factory=dict)
    """Those that count."""

    def run(self) -> None:
        """Measure what is not there yet. Raises LaunchError, TrafficError, Interrupted; what was measured is kept."""
        self._recall()
        for name, room in self.directory.content.get("room", {}).items():
            self._load(name, **room)
        goes_on = bool(self.passes)
        for session in self.wish.sessions:
            if not _is_done(self.wish, session, self.passes):
                if goes_on:
                    self.directory.update(resumed=int(self.directory.content.get("resumed", 0)) + 1)
                    goes_on = False
                self._session(session)

    def note(self, text: str) -> None:
        """Keep a note for the result, and tell it now."""
        if text not in self.notes:
            self.notes.append(text)
            self.directory.update(notes=self.notes)
            self.on_news(rundir.Noted(text))

    def _recall(self) -> None:
        """What the directory knows of earlier sessions: a result is of all of them."""
        content = self.directory.content
        self.passes = self.directory.passes()
        self.models |= content.get("models", {})
        self.notes += [text for text in content.get("notes", ()) if text not in self.notes]
        self._tokens = content.get("tokens")
        if "load_generator" in content:
            self.versions[GENERATOR] = content["load_generator"]

    def _session(self, session: Session) -> None:
        """Start its servers, measure all its blocks, stop them."""
        arms = [arm for arm in self.wish.arms if arm.name in session.arms]
        with ExitStack() as stack:
            keys = [arm.api_key_env for arm in arms if arm.api_key_env]
            log = self.directory.log(f"load-generator-{session.launch}-{session.first_block}")
            servers: dict[str, Running] = {}
            driver = Driver(log_path=log, on_tick=lambda: self._tick(servers), key_variables=keys)
            # entered first and ended first: with their clients gone, the servers have nothing to drain
            stack.callback(driver.close)
            for arm in arms:
                servers[arm.name] = stack.enter_context(self._server(arm, session))
            stack.callback(driver.close)
            stack.callback(self.on_news, rundir.Stopping(session.arms))
            driver.wait_ready()
            self._refuse_other_generator(f"vLLM {driver.vllm}")
            self._prepare(servers)
            wanted = self._blocks(session)
            self._warm_up(servers, driver)
            self._measure(session, servers, driver, wanted)

    def _refuse_other_generator(self, found: str) -> None:
        """Raises UsageError where blocks were sent by another version; else it is kept."""
        before = self.versions.get(GENERATOR)
        if self.passes and before not in (None, found):
            raise UsageError(
                f"the load generator is that of {found}, and the run began with that of {before}",
                hint=f"install {before} again, or start anew: their figures cannot be compared",
            )
        self.versions[GENERATOR] = found
        self.directory.update(load_generator=found)

    @contextmanager
    def _server(self, arm: Arm, session: Session) -> Iterator[Running]:
        """The arm's server: started here, or the one at its URL."""
        if arm.plan is None:
            assert arm.url is not None
            with self._connected(arm, arm.url, check=lambda: None) as connected:
                yield connected
            return
        plan = _placed(arm.plan, session.devices.get(arm.name))
        log_path = self.directory.log(f"{_file_name(arm.name)}-{session.launch}-{session.first_block}")
        began = time.monotonic()

        def on_event(event: events.Event) -> None:
            if isinstance(event, events.PhaseStarted):
                self.on_news(rundir.Starting(arm.name, str(event.phase), str(log_path)))

        with running(plan, log_path=log_path, on_event=on_event, stop=self.stop) as server:
            self.on_news(rundir.Ready(arm.name, time.monotonic() - began))
            with self._connected(arm, server.url, check=server.check) as connected:
                yield connected

    def _connected(self, arm: Arm, url: str, *, check: Callable[[], None]) -> Running:
        server = connect(arm, url, check=check, ignore_eos=self.wish.ignore_eos)
        if self.models.get(arm.name) != server.arm.model:
            self.models[arm.name] = server.arm.model
            self.directory.update(models=self.models)
        if not server.abilities.takes_salt:
            self.note(
                f"`{arm.name}` does not take `cache_salt`: its prefix cache may hold prompts of earlier blocks"
            )
        return server

    def _prepare(self, servers: Mapping[str, Running]) -> None:
        """The workloads as these servers can take them: once, so that every session sends the same."""
        lengths = [each.abilities.max_model_len for each in servers.values()]
        chat = all(each.abilities.has_chat for each in servers.values())
        most = min((length for length in lengths if length is not None), default=None)
        room = {"chat": chat, "max_model_len": most}
        names = list(dict.fromkeys(point.workload for point in self.wish.points))
        self._servers = servers
        is_first = "room" not in self.directory.content
        if is_first and all(each.abilities.can_count for each in servers.values()):
            self._tokens = {}
        for name in names:
            if name not in self.workloads:
                self._load(name, chat=chat, max_model_len=most)
        if is_first:
            self.directory.update(
                room=dict.fromkeys(names, room), sha256=self._digests(), tokens=self._tokens
            )
            if self.wish.keeps_texts:
                self.directory.write(PROMPTS, prompt_lines(self.workloads.values()))

    def _load(self, name: str, *, chat: bool, max_model_len: int | None) -> None:
        workload = load(
            self.wish.sources.get(name, name),
            chat=chat,
            max_model_len=max_model_len,
            count_prompt=self._count if self._tokens is not None else None,
            max_tokens=self.wish.max_tokens,
            limit=self.wish.limit,
            ignore_eos=self.wish.ignore_eos,
        )
        self.workloads[name] = workload
        known = self.directory.content.get("sha256", {}).get(name)
        if known not in (None, workload.sha256):
            raise SpecserveError(
                f"the prompts of `{name}` are not those that the run began with",
                hint="start anew: what was measured cannot be compared with them",
            )
        for remark in workload.remarks:
            self.note(f"{workload.name}: {remark}")

    def _count(self, prompt: Prompt) -> int | None:
        """Tokens of a prompt by the server that makes most of it; asked once, so that a resumed run sends the same."""
        assert self._tokens is not None
        key = digest([prompt])[:16]
        if key not in self._tokens:
            counts = [server.count(prompt) for server in self._servers.values()]
            known = [count for count in counts if count is not None]
            self._tokens[key] = max(known) if counts and len(known) == len(counts) else None
        return self._tokens[key]

    def _digests(self) -> dict[str, str]:
        return {name: workload.sha256 for name, workload in self.workloads.items()}

    def _warm_up(self, servers: Mapping[str, Running], driver: Driver) -> None:
        """Eight other prompts at the highest load, at each temperature: graphs and caches are made by them."""
        most = max((point.concurrency or 1 for point in self.wish.points), default=1)
        kinds = {workload.is_chat: workload for workload in self.workloads.values()}
        for name, server in servers.items():
            self.on_news(rundir.WarmingUp(name))
            for workload in kinds.values():
                warm = load_warm_up(workload, max_model_len=server.abilities.max_model_len)
                prompts = [_short(prompt) for prompt in warm.prompts]
                for temperature in dict.fromkeys(point.temperature for point in self.wish.points):
                    server.warm_up(
                        driver, prompts, concurrency=min(max(most, 4), _WARM_UP_MOST), temperature=temperature
                    )

    def _blocks(self, session: Session) -> tuple[Block, ...]:
        return blocks(
            self.wish.points,
            self.workloads,
            sizes=self.wish.sizes,
            launch=session.launch,
            first=session.first_block,
        )

    def _measure(
        self, session: Session, servers: Mapping[str, Running], driver: Driver, wanted: Sequence[Block]
    ) -> None:
        """The blocks that are not there yet, each on all arms of the session."""
        began = time.monotonic()
        share_s = None if self.wish.budget_s is None else self.wish.budget_s / len(self.wish.sessions)
        for block in wanted:
            if self._has(session, block):
                continue
            if share_s is not None and time.monotonic() - began > share_s:
                self.is_cut = True
                break
            still = None if self.wish.still is None else self.wish.still(block, self.passes)
            for name in arm_order(block, session.arms):
                if still is not None and name not in still:
                    continue
                done, texts = servers[name].run(driver, block, launch=session.launch)
                self.directory.append(done, texts=texts if self.wish.keeps_texts else None)
                self.passes = [each for each in self.passes if each.key != done.key] + [done]
                self._tell(done, began)
        self._spent_s += time.monotonic() - began

    def _tell(self, done: Pass, began: float) -> None:
        self._new += 1
        total = sum(len(session.arms) for session in self.wish.sessions)
        total *= self.wish.sizes.blocks * len(self.wish.points)
        spent_s = self._spent_s + time.monotonic() - began
        left_s = spent_s / self._new * max(0, total - len(self.passes))
        if self.wish.budget_s is not None:
            left_s = min(left_s, max(0.0, self.wish.budget_s - spent_s))
        speed = done.output_tokens / done.duration_s if done.duration_s else 0.0
        self.on_news(rundir.Passed(done.arm, done.point, speed, len(self.passes), total, left_s))

    def _has(self, session: Session, block: Block) -> bool:
        """Whether all arms of the session have measured it: half a block is done again, by the same launch."""
        there = {
            done.arm for done in self.passes if (done.launch, done.block) == (session.launch, block.number)
        }
        return set(session.arms) <= there

    def _tick(self, servers: Mapping[str, Running]) -> None:
        """A few times a second while we wait."""
        if self.stop.count:
            number = self.stop.signal or 15
            raise Interrupted(f"stopped by {signal_name(number)}", signal_number=number)
        for server in servers.values():
            server.check()


def is_measured(wish: Wish, passes: Sequence[Pass]) -> bool:
    """Whether every block of every session is there."""
    return all(_is_done(wish, session, passes) for session in wish.sessions)


def _is_done(wish: Wish, session: Session, passes: Sequence[Pass]) -> bool:
    wanted = wish.sizes.blocks * len(wish.points)
    numbers = range(session.first_block, session.first_block + wanted)
    there = {(done.arm, done.block) for done in passes if done.launch == session.launch}
    return all((name, number) in there for name in session.arms for number in numbers)


def _placed(plan: LaunchPlan, devices: tuple[str, ...] | None) -> LaunchPlan:
    """The plan on a free port, and on the accelerators that are its own."""
    plan = with_port(plan, free_port(plan.host))
    if devices is None:
        return plan
    return replace(plan, env={**plan.env, "CUDA_VISIBLE_DEVICES": ",".join(devices)})


def _short(prompt: Prompt) -> Prompt:
    return replace(prompt, max_tokens=min(prompt.max_tokens, WARM_UP_TOKENS))


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name)[:60]


def prompt_lines(workloads: Any) -> str:
    """What `prompts.jsonl` holds."""
    import json

    lines = [
        {"workload": workload.name, "id": prompt.id, "max_tokens": prompt.max_tokens}
        | (
            {"prompt": prompt.text}
            if prompt.messages is None
            else {"messages": [dict(m) for m in prompt.messages]}
        )
        for workload in workloads
        for prompt in workload.prompts
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)
