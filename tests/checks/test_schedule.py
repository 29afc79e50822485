"""The schedule of K: what vLLM refuses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import MappingProxyType, ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.vllm import wrong_value
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.versions import installed
from tests.checks.judging import places

Load = Callable[[str], Profile]
KEY = "num_speculative_tokens_per_batch_size"
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("rows", "hits"),
    [
        ("[[2, 4, 3]]", 1),
        ("[[1, 4, 3], [4, 8, 1]]", 1),
        ("[[5, 8, 1], [1, 6, 3]]", 1),
        ("[[4, 1, 3]]", 1),
        ("[[0, 4, 3]]", 1),
        ("[[1, 4, 3]]", 0),
        ("[[5, 8, 1], [1, 4, 3]]", 0),
        ("[[1, 4, 3], [9, 12, 0]]", 0),
        ("[[1, 1, 5]]", 0),
    ],
)
def test_a_schedule_starts_at_one_and_does_not_overlap_in_every_variant(
    profile: Load, rows: str, hits: int
) -> None:
    block = f"{{method: eagle3, model: ./d, num_speculative_tokens: 5, {KEY}: {rows}}}"
    loaded = profile(f"speculation: {block}\nalternatives: {{other: {block}}}")
    assert places("SD006", loaded) == [f"speculation.{KEY}", f"alternatives.other.{KEY}"][: 2 * hits]


@pytest.fixture(scope="module")
def vllm_schedule() -> ModuleType:
    """vLLM's own file, which imports nothing."""
    vllm = installed()
    assert vllm is not None
    file = vllm.package / "v1" / "spec_decode" / "dynamic" / "utils.py"
    spec = importlib.util.spec_from_file_location("vllm_schedule", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.vllm
@given(rows=ROWS)
def test_exactly_what_vllm_s_own_validator_refuses_is_found(
    vllm_schedule: ModuleType, rows: tuple[tuple[int, int, int], ...]
) -> None:
    try:
        vllm_schedule.validate_and_normalize_dynamic_sd_schedule([list(row) for row in rows])
        refused = False
    except ValueError:
        refused = True
    block = Speculation("eagle3", MappingProxyType({"method": "eagle3", KEY: rows}))
    loaded = Profile("p.yaml", "p", Target("./t"), speculation=block)
    assert any(wrong_value.check(Context(loaded, ("0.33",)))) == (refused and bool(rows))
