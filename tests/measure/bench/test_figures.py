"""Figures of a variant, against sums done by hand."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.hardware.accelerators import this_cpu
from specserve.measure.bench.plan import Variant, side_by_side
from specserve.measure.bench.summary import break_even, figures, invalid_reason, token_samples
from specserve.metrics import Acceptance
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table
from tests.measure.bench.making import made, planned, request


def test_throughput_is_all_tokens_over_all_seconds_and_what_failed_counts_in_nothing_else() -> None:
    passes = [
        made("a", 0, request(tokens=30), duration_s=2.0),
        made("a", 1, request(tokens=10), duration_s=3.0),
    ]
    found = figures([*passes, made("a", 2, request("p2", error="boom"), duration_s=0.0)])
    assert found is not None
    assert (found.output_tokens, found.output_tokens_per_s, found.blocks) == (40, 8.0, 3)
    assert (found.requests, found.failed_requests) == (2, 1)


def test_a_cell_whose_requests_fail_or_whose_client_is_busy_is_invalid() -> None:
    good = made("a", 0, request())
    assert invalid_reason([good]) is None
    failed = invalid_reason([made("a", 0, request(), request("p2", error="status 500"))])
    assert failed == "1 of 2 requests failed: status 500"
    busy = invalid_reason([dataclasses.replace(good, client_cpu=0.93)] * 3)
    assert busy is not None and "busy for 93%" in busy


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=20), st.floats(0.1, 100))
def test_the_shares_of_a_pass_add_up_to_its_time(latencies: list[float], seconds: float) -> None:
    requests = [request(f"p{index}", latency_s=latency) for index, latency in enumerate(latencies)]
    dealt = token_samples([made("a", 0, *requests, duration_s=seconds)])
    assert sum(item.cost for item in dealt) == pytest.approx(seconds)
    assert sum(item.amount for item in dealt) == 11 * len(latencies)


def test_break_even_is_where_the_longer_step_is_paid_for() -> None:
    # 100 steps, 3 tokens each, and twice as fast: a step takes 1.5 of a plain one
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=2.0) == pytest.approx(1.5)
    # n-grams: half of the steps have a draft, 3 tokens in those and 1 in the others, and no gain at all
    half = break_even(Acceptance(50, 200, 100), output_tokens=200, speedup=1.0)
    assert half == pytest.approx(3.0)
    assert break_even(Acceptance(0, 0, 0), output_tokens=10, speedup=1.0) is None
    assert break_even(None, output_tokens=10, speedup=1.0) is None
    # faster than one token per accepted one: the machine was busy, and no step gives less than a token
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=4.0) == 1.0


@settings(deadline=None)
@given(st.integers(1, 1000), st.floats(1, 5), st.floats(0.2, 5))
def test_what_is_measured_lies_above_break_even_where_it_is_faster(
    drafts: int, accepted: float, speedup: float
) -> None:
    acceptance = Acceptance(drafts, drafts * 5, int(drafts * accepted))
    tokens = drafts + acceptance.accepted_tokens
    even = break_even(acceptance, output_tokens=tokens, speedup=speedup)
    length = acceptance.mean_acceptance_length
    assert even is not None and length is not None
    assert (length > even) == (speedup > 1) or speedup == pytest.approx(1) or length == pytest.approx(even)


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
