"""What is sent when, and which servers run at once: fair to every variant and prompt, the same in every run."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.hardware.accelerators import this_cpu
from specserve.measure.bench.passes import blocks, prompts_by_block, variant_order
from specserve.measure.bench.plan import Variant, sessions, side_by_side
from specserve.measure.bench.result import Point
from specserve.measure.workloads import Prompt, Workload
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table
from tests.measure.bench.making import planned


def prompts(count: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"p{number}", 16, text=f"text {number}") for number in range(count))


@given(st.integers(2, 40), st.integers(2, 12), st.integers(1, 64), st.integers(0, 5))
def test_every_prompt_is_sent_equally_often(count: int, number: int, concurrency: int, launch: int) -> None:
    dealt = prompts_by_block(prompts(count), Point("chat", 0.0, concurrency), count=number, key=str(launch))
    times = Counter(item.id for block in dealt for item in block)
    assert len(dealt) == number
    assert set(times) == {f"p{index}" for index in range(count)}
    assert len(set(times.values())) == 1


@given(st.integers(8, 40), st.integers(2, 8), st.integers(1, 64))
def test_a_block_is_long_enough_for_its_load_and_as_long_as_the_others(
    count: int, number: int, concurrency: int
) -> None:
    dealt = prompts_by_block(prompts(count), Point("chat", 0.0, concurrency), count=number)
    sizes = [len(block) for block in dealt]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) >= 3 * concurrency * number or concurrency == 1


@pytest.mark.parametrize(("rate", "requests"), [(0.1, 25), (0.5, 100), (8.0, 1300)])
def test_a_block_at_a_request_rate_is_sent_for_twenty_seconds(rate: float, requests: int) -> None:
    dealt = prompts_by_block(prompts(25), Point("chat", 0.0, 0, rate), count=8)
    assert sum(map(len, dealt)) == requests


WORKLOADS = {"chat": Workload("chat", prompts(25), "specserve")}


def test_a_launch_has_one_plan_with_rounds_of_every_point_in_an_order_of_their_own() -> None:
    wanted = [Point("chat", heat, load) for heat in (0.0, 0.7) for load in (1, 4)]
    one, same, other = (blocks(wanted, WORKLOADS, count=5, launch=launch) for launch in (0, 0, 1))
    assert one == same != other
    order = [block.point for block in one]
    rounds = [order[first : first + 4] for first in range(0, 20, 4)]
    assert all(set(each) == set(wanted) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


def test_variants_take_turns_in_being_first() -> None:
    wanted = blocks([Point("chat", 0.0, 1)], WORKLOADS, count=40, launch=0)
    first = Counter(variant_order(block, ["baseline", "profile"])[0] for block in wanted)
    assert 10 <= first["baseline"] <= 30


VARIANTS = tuple(
    Variant(name, url=f"http://127.0.0.1:{port}") for port, name in enumerate(("base", "a", "b"), 9001)
)


def test_variants_that_fit_run_together_in_every_launch() -> None:
    found = sessions(VARIANTS, launches=2, together=True)
    assert [(each.launch, each.variants) for each in found] == [
        (0, ("base", "a", "b")),
        (1, ("b", "a", "base")),  # whoever starts last is fastest on a CPU
    ]


def test_variants_alone_run_forth_and_back_so_that_a_drift_cancels() -> None:
    found = sessions(VARIANTS[:2], launches=2, together=False)
    assert [each.variants for each in found] == [("base",), ("a",), ("a",), ("base",)]
    assert [each.launch for each in found] == [0, 0, 1, 1]


ROOT = Path(__file__).resolve().parents[3]


def test_on_gpus_one_server_runs_at_a_time() -> None:
    assert not side_by_side([planned("a", "cuda", cache=1), planned("b", "cuda", cache=1)])


def test_on_the_cpu_memory_decides() -> None:
    free = min(this_cpu().free_bytes or (0,))
    small, large = planned("a", "cpu", cache=1 << 20), planned("b", "cpu", cache=free)
    assert side_by_side([small, planned("b", "cpu", cache=1 << 20)])
    assert not side_by_side([small, large])
    assert not side_by_side([small, planned("b", "cpu")])  # a share of the memory


def test_servers_that_run_already_take_no_room() -> None:
    variants = [Variant("a", url="http://127.0.0.1:1"), Variant("b", url="http://127.0.0.1:2")]
    assert side_by_side(variants)
    assert side_by_side([*variants, planned("c", "cuda")])


@pytest.mark.parametrize(("draft", "fits"), [(str(ROOT / "demo" / "draft"), True), ("org/draft", False)])
def test_what_models_take_is_known_of_those_that_are_here(tmp_path: Path, draft: str, fits: bool) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"target: {{model: {ROOT / 'demo' / 'target'}}}\nengine: {{kv_cache_memory_bytes: 1M}}\n"
        f"speculation: {{method: draft_model, model: {draft}, num_speculative_tokens: 4}}\n"
    )
    plan = launch(load_profile(file), table=table("0.33"), platform="cpu")
    assert side_by_side([planned("a", "cpu", cache=1 << 20), Variant("b", plan)]) is fits
