"""A benchmark that is interrupted and resumed: measured once, told whole.

Servers and load generator stand in; tests/engine/test_bench_traffic.py does it with vLLM's own load generator.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.errors import Interrupted, SpecserveError
from specserve.measure import servers as subject
from specserve.measure.bench.passes import Block, Pass, Progress, RunDirectory, create, resume
from specserve.measure.bench.plan import BenchPlan, BenchRequest, Variant, sessions
from specserve.measure.bench.result import Point
from specserve.measure.bench.run import Bench
from specserve.measure.bench.summary import speedup
from specserve.measure.verdict import PAYS, needed, verdict
from specserve.serve.process import StopRequest
from tests.measure.bench.making import Connected, request

VARIANTS = (Variant("a", url="http://127.0.0.1:1"), Variant("b", url="http://127.0.0.1:2"))
POINT = Point("mine", 0.0, 1)


@dataclass
class World:
    """What the servers can, and what was asked of them."""

    ends_after: int | None = None
    """Passes until somebody interrupts."""
    connections: list[Connected] = field(default_factory=list)
    sent: list[Block] = field(default_factory=list)
    seconds: Callable[[str, Block], float] = lambda _variant, _block: 1.0
    """What a block takes on a variant."""

    def connect(self, variant: Variant, url: str, *, check: Callable[[], None]) -> Any:
        """In the place of a server's first questions."""
        del url, check

        def send(_driver: object, block: Block, *, launch: int) -> Pass | None:
            if launch < 0:  # the warm-up
                return None
            if self.ends_after is not None and len(self.sent) >= self.ends_after:
                raise Interrupted("stopped by SIGINT", exit_code=128 + 2)
            self.sent.append(block)
            requests = tuple(request(f"{each.id}#{at}") for at, each in enumerate(block.prompts))
            took_s = self.seconds(variant.name, block)
            return Pass(launch, block.number, block.point, variant.name, took_s, 0.1, requests)

        self.connections.append(
            Connected(
                variant=variant, model="served", client=SimpleNamespace(max_model_len=lambda _model: None),
                has_chat=lambda: True, run=send, check=lambda: None,
            )
        )  # fmt: skip
        return self.connections[-1]

    def driver(self, **_: object) -> Any:
        """In the place of the load generator."""
        return SimpleNamespace(close=lambda: None, wait_ready=lambda: None)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    here = World()
    monkeypatch.setattr(subject, "connect", here.connect)
    monkeypatch.setattr(subject, "LoadGenerator", here.driver)
    return here


@pytest.fixture
def plan(tmp_path: Path) -> BenchPlan:
    """Two servers, one point, three blocks of three prompts: short, middling, long."""
    file = tmp_path / "mine.jsonl"
    lines = [{"id": f"ticket#{size}", "prompt": "x" * size, "max_tokens": 64} for size in (10, 900, 4000)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    both = sessions(VARIANTS, launches=1, together=True)
    return BenchPlan(VARIANTS, both, (POINT,), 3, {"mine": str(file)}, together=True)


def bench(plan: BenchPlan, directory: RunDirectory) -> Bench:
    return Bench(plan, directory, lambda _: None, StopRequest())


def interrupted(plan: BenchPlan, world: World, folder: Path, *, after: int) -> None:
    """A run that ends after so many passes."""
    world.ends_after = after
    with create(folder, {}) as directory, pytest.raises(Interrupted):
        bench(plan, directory).run()
    world.ends_after = None


def test_a_resumed_run_knows_what_its_first_session_learned(
    plan: BenchPlan, world: World, tmp_path: Path
) -> None:
    interrupted(plan, world, tmp_path / "run", after=3)
    with resume(tmp_path / "run") as directory:
        again = bench(plan, directory)
        again.run()
    assert len(again.passes) == 6
    assert again.models == {"a": "served", "b": "served"}


def test_other_prompts_are_not_mixed_with_those_that_were_measured(
    plan: BenchPlan, world: World, tmp_path: Path
) -> None:
    interrupted(plan, world, tmp_path / "run", after=2)
    file = Path(plan.sources["mine"])
    file.write_text(file.read_text().replace("xxxxxxxxxx", "yyyyyyyyyy"))
    with (
        resume(tmp_path / "run") as directory,
        pytest.raises(SpecserveError, match="the prompts of `mine` changed since the run began"),
    ):
        bench(plan, directory)


def timed(
    plan: BenchPlan, world: World, run: Path, patch: pytest.MonkeyPatch, cost_s: Callable[[Point], float]
) -> tuple[Bench, list[Progress]]:
    """The finished benchmark, and what it said; a pass takes `cost_s` of its point, and all else takes no time."""
    now_s, passed, connect = 100.0, [], world.connect
    for module in ("specserve.measure.servers", "specserve.measure.bench.run"):
        patch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now_s))

    def connecting(variant: Variant, url: str, *, check: Callable[[], None]) -> Any:
        made = connect(variant, url, check=check)
        send = made.run

        def slow(driver: object, block: Block, *, launch: int) -> Pass:
            nonlocal now_s
            now_s += cost_s(block.point) if launch >= 0 else 0.0
            done: Pass = send(driver, block, launch=launch)
            return done

        made.run = slow
        return made

    patch.setattr(subject, "connect", connecting)
    with create(run, {}) as directory:
        here = Bench(plan, directory, lambda what: passed.append(what) if what.total else None, StopRequest())
        here.run()
    return here, passed


def test_a_budget_ends_the_measuring(
    plan: BenchPlan, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six passes of 10 s, and 35 s of budget: two blocks are whole by then."""
    short = replace(plan, budget_s=35.0)
    run, passed = timed(short, world, tmp_path / "run", monkeypatch, lambda _: 10.0)
    assert run.is_cut and [each.done for each in passed] == [1, 2, 3, 4]
    assert 0 < passed[0].left_s <= 35.0


def test_a_budget_counts_what_earlier_sessions_measured(
    plan: BenchPlan, world: World, tmp_path: Path
) -> None:
    """A pass takes 1 s and 1.1 s of rest: two blocks use up eight seconds, and nothing is started again."""
    interrupted(plan, world, tmp_path / "run", after=4)
    before = len(world.connections)
    with resume(tmp_path / "run") as directory:
        again = bench(replace(plan, budget_s=8.0), directory)
        again.run()
        assert again.is_cut and len(world.connections) == before and len(again.passes) == 4
        longer = bench(replace(plan, budget_s=60.0), directory)
        longer.run()
        assert not longer.is_cut and len(longer.passes) == 6


def noisy(spread: float, rng: random.Random | None = None) -> Callable[[str, Block], float]:
    """Variant b is 10 % faster, give or take."""
    rng = rng or random.Random(3)
    return lambda variant, _: (1.1 if variant == "a" else 1.0) * math.exp(rng.gauss(0, spread))


def many(plan: BenchPlan, **changes: Any) -> BenchPlan:
    """The same with 30 prompts, so that blocks decide."""
    lines = [{"id": f"p{n}", "prompt": f"text {n}", "max_tokens": 64} for n in range(30)]
    Path(plan.sources["mine"]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return replace(plan, **{"blocks": 8, **changes})


def test_a_load_is_measured_until_its_verdict_is_clear(plan: BenchPlan, world: World, tmp_path: Path) -> None:
    world.seconds = noisy(0.1)
    with create(tmp_path / "run", {}) as directory:
        here = bench(many(plan), directory)
        here.run()
        count = len(here.passes)
        assert count > 2 * 8 and count % (2 * 8) == 0 and not here.is_cut
        found = speedup(here.passes, variant="b", against="a", at=POINT)
        assert found is not None and verdict(found).word == PAYS
        fewer = [each for each in here.passes if each.block < here.passes[-1].block // 8 * 8]
        before = speedup(fewer, variant="b", against="a", at=POINT)
        assert before is not None and verdict(before).level == "open"
        again = bench(many(plan), directory)
        again.run()  # there is nothing left
    assert len(again.passes) == count and len(world.connections) == 2


def test_only_the_budget_ends_what_stays_open_and_a_quick_run_has_one_round(
    plan: BenchPlan, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant that is 4 % faster, give or take 10 %: a pass takes 1 s, and 1.1 s of rest."""
    rng = random.Random(3)
    world.seconds = lambda variant, _: (1.04 if variant == "a" else 1.0) * math.exp(rng.gauss(0, 0.1))
    open_one = many(plan, budget_s=150.0)
    here, _ = timed(open_one, world, tmp_path / "run", monkeypatch, lambda _: 2.1)
    found = speedup(here.passes, variant="b", against="a", at=POINT)
    assert found is not None and needed(found)[0] == "blocks"
    assert 60 < len(here.passes) < 80 and not here.is_cut
    open_one = replace(open_one, request=BenchRequest(quick=True))
    here, _ = timed(open_one, world, tmp_path / "quick", monkeypatch, lambda _: 2.1)
    assert len(here.passes) == 16


def test_a_variant_that_runs_alone_is_sent_what_its_partner_was(
    plan: BenchPlan, world: World, tmp_path: Path
) -> None:
    """A B B A: the second launch has the rounds that the first one calls for, for both."""
    world.seconds = noisy(0.12)
    alone = many(
        plan,
        sessions=sessions(VARIANTS, launches=2, together=False),
        together=False,
        request=BenchRequest(launches=2),
    )
    with create(tmp_path / "run", {}) as directory:
        here = bench(alone, directory)
        here.run()
    blocks = {
        (launch, variant): sorted(p.block for p in here.passes if (p.launch, p.variant) == (launch, variant))
        for launch in (0, 1)
        for variant in "ab"
    }
    assert blocks[0, "a"] == blocks[0, "b"] == list(range(8))
    assert blocks[1, "a"] == blocks[1, "b"] and len(blocks[1, "a"]) > 8
    assert [each.variant.name for each in world.connections] == ["a", "b", "b", "a"]


@pytest.mark.parametrize(("given", "most"), [(None, 3), (2, 2)])
def test_what_stays_open_alone_gets_up_to_four_launches_if_none_are_named(
    plan: BenchPlan, world: World, tmp_path: Path, given: int | None, most: int
) -> None:
    """With a server that has ended, a comparison cannot go on: both start again, in the other order."""
    request = BenchRequest(launches=given)
    alone = many(
        plan, sessions=sessions(VARIANTS, launches=2, together=False), request=request, together=False
    )
    launches, decided = Counter[int](), 0
    for seed in (0, 6):  # with two launches the second one stays open
        rng = random.Random(seed)
        world.connections, world.seconds = [], noisy(0.1, rng)
        with create(tmp_path / str(seed), {}) as directory:
            here = bench(alone, directory)
            here.run()
            started = [each.variant.name for each in world.connections]
            assert "".join(started) == "abba" * (len(started) // 4) + "ab" * (len(started) % 4 // 2)
            sent = len(world.sent)
            bench(alone, directory).run()
            assert len(world.sent) == sent  # a resumed run knows them
        launches[len(started) // 2] += 1
        found = speedup(here.passes, variant="b", against="a", at=POINT)
        decided += found is not None and verdict(found).word == PAYS
    assert launches == {2: 1, most: 1} if most > 2 else {2: 2}
    assert decided == (2 if given is None else 1)
