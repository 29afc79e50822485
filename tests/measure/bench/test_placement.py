"""How many servers run at the same time: one on GPUs, as many as memory holds on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.hardware.accelerators import this_cpu
from specserve.measure.bench.plan import Variant, side_by_side
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table
from tests.measure.bench.making import planned

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
