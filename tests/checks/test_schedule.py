"""The schedule of K: what vLLM refuses, clamps, drops, and what it costs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rules.schedules import problem_of
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
    (finding,) = of("SD118", profile(text(rows)))
    assert finding.message == message
    assert "_per_batch_size[" in finding.span.path


def test_a_schedule_that_is_dropped_is_refused_and_clamped_by_nobody(profile: Load) -> None:
    loaded = profile(text("[[2, 4, 9]]", more="engine: {data_parallel_size: 2}"))
    assert of("SD118", loaded) == of("SD119", loaded) == []
    assert len(of("SD120", loaded)) == 1


@pytest.mark.parametrize(
    "rows", ["[[1, 4, 3]]", "[[5, 8, 1], [1, 4, 3]]", "[[1, 4, 3], [9, 12, 0]]", "[[1, 1, 5]]"]
)
def test_gaps_order_and_a_k_of_zero_are_fine(profile: Load, rows: str) -> None:
    assert of("SD118", profile(text(rows))) == []


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
    assert (problem_of(rows) is not None) == (refused and bool(rows))


@pytest.mark.parametrize(("k", "hits"), [(4, 1), (3, 0), (2, 0)])
def test_only_a_k_above_the_ceiling_is_clamped(profile: Load, k: int, hits: int) -> None:
    assert len(of("SD119", profile(text(f"[[1, 4, {k}]]", k=3)))) == hits


@pytest.mark.vllm
@pytest.mark.parametrize(("k", "ceiling"), [(5, 3), (3, 3), (2, 3)])
def test_vllm_clamps_exactly_what_is_called_clamped(
    profile: Load, vllm_schedule: ModuleType, k: int, ceiling: int
) -> None:
    lookup = vllm_schedule.build_dynamic_sd_schedule_lookup([[1, 4, k]], 8, ceiling)
    found = of("SD119", profile(text(f"[[1, 4, {k}]]", k=ceiling)))
    assert (lookup[1] != k) == bool(found)


@pytest.mark.parametrize(
    ("method", "more", "hits"),
    [
        ("eagle3", "engine: {data_parallel_size: 2}", 1),
        ("eagle3", "engine: {data_parallel_size: 1}", 0),
        ("eagle3", "", 0),
        ("suffix", 'vllm: ">=0.33"', 1),
        ("suffix", 'vllm: "~=0.32.0"', 0),
        ("ngram", "vllm: '>=0.33'\nenv: {VLLM_USE_V2_MODEL_RUNNER: 0}", 0),
        ("ngram_gpu", "vllm: '>=0.33'\nenv: {VLLM_USE_V2_MODEL_RUNNER: 0}", 1),
        ("ngram_gpu", "vllm: '>=0.33'", 0),
    ],
)
def test_a_schedule_is_dropped_under_data_parallelism_and_by_v1_for_some_methods(
    profile: Load, method: str, more: str, hits: int
) -> None:
    assert len(of("SD120", profile(text("[[1, 4, 3]]", method=method, more=more)))) == hits


@pytest.mark.parametrize(
    ("method", "more", "word"),
    [
        ("draft_model", 'vllm: ">=0.32"', "verification only"),
        ("ngram", 'vllm: ">=0.32"', "verification only"),
        ("eagle3", 'vllm: ">=0.32"', None),
        (
            "eagle3",
            "vllm: '>=0.32'\nenv: {VLLM_USE_V2_MODEL_RUNNER: 0}\nhardware: {accelerator: L4-24GB}",
            "graphs",
        ),
        ("eagle3", "vllm: '>=0.32'\nenv: {VLLM_USE_V2_MODEL_RUNNER: 0}\nhardware: {accelerator: cpu}", None),
    ],
)
def test_what_a_schedule_costs_depends_on_method_and_runner(
    profile: Load, method: str, more: str, word: str | None
) -> None:
    messages = [item.message for item in of("SD121", profile(text("[[1, 4, 3]]", method=method, more=more)))]
    assert len(messages) == (word is not None) and all(word in message for message in messages if word)


SCHEDULE, ON_V2 = "[[1, 16, 5], [17, 64, 2]]", "env: {VLLM_USE_V2_MODEL_RUNNER: 1}"
HOPPER = "hardware: {accelerator: H100-80GB}"


def for_version(version: str, rows: str = SCHEDULE, *, method: str = "eagle3", more: str = HOPPER) -> str:
    return text(rows, method=method, more=f'vllm: "=={version}.*"\n{ON_V2}\n{more}')


def severities(loaded: Profile, code: str = "SD118") -> list[str]:
    return [finding.severity.value for finding in of(code, loaded)]


@pytest.mark.parametrize(
    ("method", "version", "rows", "found"),
    [
        ("eagle3", "0.26", SCHEDULE, ["error"]),
        ("eagle", "0.31", SCHEDULE, ["error"]),
        ("eagle3", "0.32", SCHEDULE, []),
        ("eagle3", "0.31", "[[1, 16, 5]]", []),
        ("mtp", "0.26", SCHEDULE, ["error"]),
        ("mtp", "0.27", SCHEDULE, ["error"]),
        ("mtp", "0.28", SCHEDULE, ["warning"]),  # how many layers the model has is not known here
        ("draft_model", "0.31", SCHEDULE, []),  # drafted without graphs
        ("dflash", "0.26", "[[1, 16, 5], [17, 64, 0]]", []),
        ("dspark", "0.28", "[[1, 16, 5], [17, 64, 1]]", []),
        (
            "dspark",
            "0.28",
            "[[1, 16, 5], [17, 64, 0]]",
            ["warning"],
        ),  # whether a block has K or K + 1 tokens, too
    ],
)
def test_a_smaller_k_that_the_draft_cannot_be_captured_for_stops_the_v2_runner(
    profile: Load, method: str, version: str, rows: str, found: list[str]
) -> None:
    loaded = profile(for_version(version, rows, method=method))
    assert severities(loaded) == found
    assert all(finding.span.path.endswith("_per_batch_size[1]") for finding in of("SD118", loaded))


def test_the_arms_are_judged_each_at_its_own_place(profile: Load) -> None:
    key = "num_speculative_tokens_per_batch_size"
    block = f"{{method: eagle3, model: ./h, num_speculative_tokens: 2, {key}: [[2, 3, 1]]}}"
    loaded = profile(f"speculation: {block}\nalternatives: {{other: {block}}}")
    key = f"{key}[0]"
    assert places("SD118", loaded) == [f"speculation.{key}", f"alternatives.other.{key}"]
