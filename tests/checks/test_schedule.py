"""The schedule of K: what vLLM refuses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rules.arguments import schedule_problem
from specserve.profile.schema import Profile
from specserve.vllm.versions import installed
from tests.checks.judging import of, places

Load = Callable[[str], Profile]
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=4).map(tuple)


def text(rows: str, *, method: str = "eagle3", k: int = 5, more: str = "") -> str:
    model = "" if method in ("ngram", "suffix", "ngram_gpu") else "model: ./d, "
    window = "prompt_lookup_min: 2, prompt_lookup_max: 4, " if method.startswith("ngram") else ""
    key = f"num_speculative_tokens_per_batch_size: {rows}"
    return f"speculation: {{method: {method}, {model}{window}num_speculative_tokens: {k}, {key}}}\n{more}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("[[2, 4, 3]]", "the first range starts at 2, not at 1"),
        ("[[1, 4, 3], [4, 8, 1]]", "the range overlaps the one that ends at 4"),
        ("[[5, 8, 1], [1, 6, 3]]", "the range overlaps the one that ends at 6"),
        ("[[4, 1, 3]]", "the range starts at 4 and ends at 1"),
        ("[[0, 4, 3]]", "batch sizes start at 1"),
    ],
)
def test_a_schedule_that_vllm_refuses_is_found_at_its_row(profile: Load, rows: str, message: str) -> None:
    (finding,) = of("SD006", profile(text(rows)))
    assert finding.message == message
    assert "_per_batch_size[" in finding.span.path


@pytest.mark.parametrize(
    "rows", ["[[1, 4, 3]]", "[[5, 8, 1], [1, 4, 3]]", "[[1, 4, 3], [9, 12, 0]]", "[[1, 1, 5]]"]
)
def test_gaps_order_and_a_k_of_zero_are_fine(profile: Load, rows: str) -> None:
    assert of("SD006", profile(text(rows))) == []


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
def test_exactly_what_vllm_s_own_validator_refuses_is_broken(
    vllm_schedule: ModuleType, rows: tuple[tuple[int, int, int], ...]
) -> None:
    try:
        vllm_schedule.validate_and_normalize_dynamic_sd_schedule([list(row) for row in rows])
        refused = False
    except ValueError:
        refused = True
    assert (schedule_problem(rows) is not None) == (refused and bool(rows))


def test_the_variants_are_judged_each_at_its_own_place(profile: Load) -> None:
    key = "num_speculative_tokens_per_batch_size"
    block = f"{{method: eagle3, model: ./h, num_speculative_tokens: 2, {key}: [[2, 3, 1]]}}"
    loaded = profile(f"speculation: {block}\nalternatives: {{other: {block}}}")
    key = f"{key}[0]"
    assert places("SD006", loaded) == [f"speculation.{key}", f"alternatives.other.{key}"]
