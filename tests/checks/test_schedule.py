"""The schedule of K: what vLLM refuses, clamps, drops, and what it costs."""

from __future__ import annotations

import importlib.util
import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.gather import CheckOptions, gather
from specserve.checks.rules.schedules import problem_of
from specserve.profile.schema import Profile
from specserve.vllm.speculation import uncaptured_row
from specserve.vllm.versions import installed
from tests.checks.checkpoints import checkpoint
from tests.checks.judging import judged, of, places
from tests.checks.vllmlines import function, minor

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


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", ["warning"]),
        ("hardware: {accelerator: L4-24GB}", ["warning"]),
        ("hardware: {accelerator: L4-24GB}\nengine: {attention_backend: TRITON_ATTN}", ["error"]),
        ("hardware: {accelerator: L4-24GB}\nengine: {attention_backend: FLASHINFER}", []),
        ("hardware: {accelerator: H100-80GB}\nengine: {attention_backend: TRITON_MLA}", ["warning"]),
        (f"{HOPPER}\nengine: {{enforce_eager: true}}", []),
        (f"{HOPPER}\nengine: {{compilation_config: {{cudagraph_mode: PIECEWISE}}}}", []),
        (f"{HOPPER}\nengine: {{data_parallel_size: 2}}", []),
        ("hardware: {accelerator: cpu}", []),
    ],
)
def test_a_draft_that_is_not_captured_whole_stops_nothing(profile: Load, more: str, found: list[str]) -> None:
    assert severities(profile(for_version("0.26", more=more))) == found


@pytest.mark.parametrize(("version", "hits"), [("0.28", 1), ("0.29", 0)])
def test_a_row_beyond_max_num_seqs_is_captured_for_before(profile: Load, version: str, hits: int) -> None:
    rows, requests = "[[1, 64, 5], [65, 128, 1]]", f"{HOPPER}\nengine: {{max_num_seqs: 64}}"
    assert len(of("SD118", profile(for_version(version, rows, more=requests)))) == hits


@pytest.mark.parametrize(("name", "found"), [("mimo", ["error"]), ("mimo-two", [])])
def test_several_prediction_layers_are_captured_in_another_way(
    profile: Load, tmp_path: Path, name: str, found: list[str]
) -> None:
    checkpoint(tmp_path, name)
    block = for_version("0.29", method="mtp").replace("model: ./d, ", "")
    context = gather(
        profile(f"target: {{model: ./{name}}}\n{block}"), wanted=CheckOptions(offline=True)
    ).context
    assert [item.severity.value for item in judged(context) if item.code == "SD118"] == found


@pytest.mark.parametrize(
    ("version", "more", "hits"),
    [("0.28", "engine: {enforce_eager: true}", 1), ("0.31", "", 1), ("0.31", HOPPER, 0), ("0.32", "", 0)],
)
def test_a_head_that_starts_drafts_all_tokens_before(
    profile: Load, version: str, more: str, hits: int
) -> None:
    found = of("SD121", profile(for_version(version, more=more)))
    assert len(found) == hits and all("verification only" in item.message for item in found)


class _Graph(NamedTuple):
    """What vLLM's list says of a graph."""

    cg_mode: str
    num_tokens: int
    num_reqs: int
    uniform_token_count: int | None = None
    num_active_loras: int = 0
    num_ubatches: int = 1


class _Mode(str):
    """A graph mode in which decode steps are captured whole, and nothing else is."""

    def decode_mode(self) -> str:
        return "FULL"

    def mixed_mode(self) -> None:
        return None

    def separate_routine(self) -> bool:
        return True


def _captures(
    vllm_schedule: ModuleType, rows: list[list[int]], *, k: int, tokens: int, requests: int
) -> bool:
    """Whether vLLM's own list of graphs has none without a request, for a draft step of so many tokens per request."""
    file = "v1/worker/gpu/cudagraph_utils.py"
    speculative = SimpleNamespace(
        uses_dynamic_speculative_decoding=lambda: True, num_speculative_tokens_per_batch_size=rows
    )
    manager = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=[1, 2, 4, *range(8, 65, 8)], max_cudagraph_capture_size=64
        ),
        vllm_config=SimpleNamespace(speculative_config=speculative, num_speculative_tokens=k),
        cudagraph_mode=_Mode("FULL"), decode_query_len=tokens, max_num_reqs=requests, lora_capture_cases=[0],
        varlen_decode=False, _maybe_ubatch_twin=lambda _: None, _candidates={}, _capture_descs={},
    )  # fmt: skip
    init = function(
        file, "_init_candidates", CUDAGraphMode=SimpleNamespace(FULL="FULL", PIECEWISE="PIECEWISE"),
        BatchExecutionDescriptor=_Graph,
        build_dynamic_sd_schedule_lookup=vllm_schedule.build_dynamic_sd_schedule_lookup,
        product=itertools.product, groupby=itertools.groupby, defaultdict=defaultdict,
        round_up=lambda value, unit: -(-value // unit) * unit,
    )  # fmt: skip
    try:
        init(manager)
    except ZeroDivisionError:
        return False
    return all(
        0 < desc.num_reqs <= desc.num_tokens for desc in itertools.chain(*manager._capture_descs.values())
    )


@pytest.mark.vllm
@given(
    ranges=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=3),
    k=st.integers(1, 4),
    requests=st.integers(1, 12),
)
def test_vllm_captures_the_draft_exactly_for_the_rows_that_are_captured(
    vllm_schedule: ModuleType, ranges: list[tuple[int, int]], k: int, requests: int
) -> None:
    ends = list(itertools.accumulate(size for size, _ in ranges))
    listed = [[end - size + 1, end, min(own, k)] for end, (size, own) in zip(ends, ranges, strict=True)]
    for method, tokens in (("eagle3", 1), ("dspark", k), ("dflash", k + 1)):
        row = uncaptured_row(
            minor(), method=method, num_speculative_tokens=k, schedule=listed, sequences=requests
        )
        is_captured = _captures(vllm_schedule, listed, k=k, tokens=tokens, requests=requests)
        assert is_captured == (row is None), method


def test_the_arms_are_judged_each_at_its_own_place(profile: Load) -> None:
    key = "num_speculative_tokens_per_batch_size"
    block = f"{{method: eagle3, model: ./h, num_speculative_tokens: 2, {key}: [[2, 3, 1]]}}"
    loaded = profile(f"speculation: {block}\nalternatives: {{other: {block}}}")
    key = f"{key}[0]"
    assert places("SD118", loaded) == [f"speculation.{key}", f"alternatives.other.{key}"]
