"""The draft beside its target: contexts, kernels, weights, names, as far as a profile shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.pairing import shortened_context, too_long_draft
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation, Target
from tests.checks.judging import of

Load = Callable[[str], Profile]
LENGTHS = st.none() | st.just(-1) | st.integers(1, 1 << 20)


@given(
    target=LENGTHS,
    draft=st.none() | st.integers(1, 1 << 20),
    method=st.sampled_from(("draft_model", "eagle3")),
)
def test_a_draft_s_own_context_is_refused_above_the_target_s_and_shortens_it_below(
    target: int | None, draft: int | None, method: str
) -> None:
    keys = {"method": method, "model": "./d", "num_speculative_tokens": 2}
    block = Speculation(method, keys if draft is None else {**keys, "max_model_len": draft})
    profile = Profile("p.yaml", "p", Target("./m", max_model_len=target), speculation=block)
    known = target is not None and target > 0 and draft is not None
    too_long = [*too_long_draft.check(Context(profile, ("0.33",)))]
    shorter = [*shortened_context.check(Context(profile, ("0.33",)))]
    assert bool(too_long) == (known and draft > target)  # type: ignore[operator]
    assert bool(shorter) == (known and draft < target and method == "draft_model")  # type: ignore[operator]
    assert [*shortened_context.check(Context(profile, ("0.32",)))] == []


def test_v1_can_pause_speculation_and_keeps_the_context(profile: Load) -> None:
    text = (
        'vllm: ">=0.33"\ntarget: {model: ./m, max_model_len: 32768}\n'
        "speculation: {method: draft_model, model: ./d, num_speculative_tokens: 3, max_model_len: 4096}\n"
    )
    assert len(of("SD153", profile(text))) == 1
    assert of("SD153", profile(text + "env: {VLLM_USE_V2_MODEL_RUNNER: 0}")) == []


@pytest.mark.parametrize(
    ("block", "engine", "hits"),
    [
        ("{method: mtp, num_speculative_tokens: 1}", "{moe_backend: marlin}", 1),
        ("{method: mtp, num_speculative_tokens: 1}", "{moe_backend: auto}", 0),
        ("{method: mtp, num_speculative_tokens: 1}", "{}", 0),
        ("{method: mtp, num_speculative_tokens: 1, moe_backend: triton}", "{moe_backend: marlin}", 0),
        ("{method: ngram, num_speculative_tokens: 1}", "{moe_backend: marlin}", 0),
    ],
)
def test_expert_kernels_are_inherited_unless_the_block_names_its_own(
    profile: Load, block: str, engine: str, hits: int
) -> None:
    found = of("SD154", profile(f"target: {{model: ./m}}\nspeculation: {block}\nengine: {engine}"))
    assert [item.severity for item in found] == [Severity.INFO] * hits


@pytest.mark.parametrize(
    ("quantization", "block", "hits"),
    [
        ("fp8", "{method: draft_model, model: ./d, num_speculative_tokens: 1}", 1),
        ("fp8", "{method: draft_model, model: ./d, num_speculative_tokens: 1, quantization: fp8}", 0),
        ("fp8", "{method: mtp, num_speculative_tokens: 1}", 0),
        ("awq", "{method: draft_model, model: ./d, num_speculative_tokens: 1}", 0),
        ("null", "{method: draft_model, model: ./d, num_speculative_tokens: 1}", 0),
    ],
)
def test_a_draft_inherits_no_quantization_at_load(
    profile: Load, quantization: str, block: str, hits: int
) -> None:
    text = f"target: {{model: ./m, quantization: {quantization}}}\nspeculation: {block}"
    assert len(of("SD155", profile(text))) == hits


@pytest.mark.parametrize(
    "model",
    [
        "z-lab/Qwen3-8B-DFlash-b16", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B",
        "nvidia/gpt-oss-120b-Eagle3-v3", "RadixArk/Qwen3.8-27B-DSpark", "AngelSlim/Qwen3-8B_eagle3",
        "RedHatAI/Qwen3-8B-speculator.eagle3",
    ],
)  # fmt: skip
def test_published_heads_are_known_by_their_names(profile: Load, model: str) -> None:
    assert len(of("SD156", profile(f"target: {{model: {model}}}"))) == 1


def test_a_head_beside_ngram_is_still_a_head(profile: Load) -> None:
    text = (
        "target: {model: z-lab/Qwen3-8B-DFlash-b16}\nspeculation: {method: ngram, num_speculative_tokens: 3}"
    )
    assert len(of("SD156", profile(text))) == 1


def test_a_head_that_names_its_target_can_be_served(profile: Load) -> None:
    (found,) = of("SD156", profile("target: {model: RedHatAI/Qwen3-8B-speculator.eagle3}"))
    assert found.severity is Severity.INFO


@pytest.mark.parametrize(
    ("model", "block"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash-DSpark", "null"),
        ("deepseek-ai/DeepSeek-V4-Pro-DSpark", "{method: dspark, num_speculative_tokens: 7}"),
        ("XiaomiMiMo/MiMo-V2.5-Pro-FP4-DFlash", "null"),
        ("XiaomiMiMo/MiMo-V2.5-DFlash", "{method: dflash, model: ./dflash, num_speculative_tokens: 7}"),
        ("org/New-DSpark", "{method: dspark, num_speculative_tokens: 7}"),
        ("org/New-DFlash", "{method: dflash, model: org/New-DFlash/dflash, num_speculative_tokens: 7}"),
    ],
)
def test_a_checkpoint_that_holds_target_and_head_can_be_served(profile: Load, model: str, block: str) -> None:
    assert of("SD156", profile(f"target: {{model: {model}}}\nspeculation: {block}")) == []


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "org/beagle-7b", "org/legalbeagle-3", "org/eaglet",
        "./eagle3-tests/llama", "/models/dflash", "NTQAI/Nxcode", "org/spectacle3-8b",
    ],
)  # fmt: skip
def test_a_model_or_a_folder_is_not_taken_for_a_head(profile: Load, model: str) -> None:
    assert of("SD156", profile(f"target: {{model: {model}}}")) == []


@pytest.mark.parametrize(
    ("ranks", "method", "draft", "hits"),
    [(4, "eagle3", 1, 1), (4, "eagle3", 4, 0), (1, "eagle3", 1, 0), (4, "dspark", 1, 0), (4, "mtp", 1, 1)],
)
def test_a_head_s_own_rank_count_is_told_to_be_ignored(
    profile: Load, ranks: int, method: str, draft: int, hits: int
) -> None:
    text = (
        f"target: {{model: ./m, tensor_parallel_size: {ranks}}}\n"
        f"speculation: {{method: {method}, model: ./h, num_speculative_tokens: 1, draft_tensor_parallel_size: {draft}}}"
    )
    assert len(of("SD157", profile(text))) == hits


@pytest.mark.parametrize(
    ("dtype", "method", "hits"),
    [
        ("fp8", "dflash", 1),
        ("fp8_e4m3", "dspark", 1),
        ("auto", "dflash", 0),
        ("bfloat16", "dflash", 0),
        ("fp8", "eagle3", 0),
    ],
)
def test_a_small_cache_type_is_inherited_by_drafters_that_may_have_no_kernel_for_it(
    profile: Load, dtype: str, method: str, hits: int
) -> None:
    block = f"{{method: {method}, model: ./d, num_speculative_tokens: 3%s}}"
    text = f"speculation: {block}\nengine: {{kv_cache_dtype: {dtype}}}"
    assert len(of("SD158", profile(text % ""))) == hits
    assert of("SD158", profile(text % ", kv_cache_dtype: bfloat16")) == []


def test_a_shortened_context_names_the_versions_that_shorten_it(profile: Load) -> None:
    text = (
        "target: {model: ./m, max_model_len: 32768}\nhardware: {accelerator: H100-80GB}\n"
        "speculation: {method: draft_model, model: ./d, num_speculative_tokens: 3, max_model_len: 4096}"
    )
    (found,) = of("SD153", profile(text))
    assert found.message == "vLLM 0.33 will take 4096 tokens, not 32768"
    assert of("SD153", profile(f"vllm: '==0.32.*'\n{text}")) == []
