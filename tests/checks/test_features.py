"""Features of vLLM that a way to speculate refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of, places

Load = Callable[[str], Profile]
ADAPTIVE = (
    'vllm: ">=0.32"\nspeculation: {method: dspark, model: ./d, num_speculative_tokens: 4, '
    "enable_adaptive_verification: true}\n"
)


@pytest.mark.parametrize(
    ("line", "related"),
    [
        ("engine: {enable_lora: true}", "engine.enable_lora"),
        ("engine: {enforce_eager: true}", "engine.enforce_eager"),
        (
            "engine: {compilation_config: {cudagraph_mode: piecewise}}",
            "engine.compilation_config.cudagraph_mode",
        ),
        ("engine: {enable_return_routed_experts: true}", "engine.enable_return_routed_experts"),
        ("target: {model: ./m, pipeline_parallel_size: 2}", "target.pipeline_parallel_size"),
    ],
)
def test_adaptive_verification_points_at_what_it_does_not_work_with(
    profile: Load, line: str, related: str
) -> None:
    (finding,) = of("SD133", profile(ADAPTIVE + line))
    assert [item.span.path for item in finding.related] == [related]


@pytest.mark.parametrize(
    "line",
    ["", "engine: {compilation_config: {cudagraph_mode: FULL_DECODE_ONLY}}", "engine: {enable_lora: false}"],
)
def test_adaptive_verification_alone_is_fine(profile: Load, line: str) -> None:
    assert of("SD133", profile(ADAPTIVE + line)) == []


@pytest.mark.parametrize(
    ("speculation", "engine", "found"),
    [
        (
            "{method: mtp, num_speculative_tokens: 1}", "{kv_sharing_fast_prefill: true}",
            ["engine.kv_sharing_fast_prefill"],
        ),
        ("{method: draft_model, model: ./d, num_speculative_tokens: 1}", "{kv_sharing_fast_prefill: true}", []),
        ("{method: mtp, num_speculative_tokens: 1, index_share_for_mtp_iteration: true}", "{}", []),
        (
            "{method: eagle3, model: ./d, num_speculative_tokens: 1, index_share_for_mtp_iteration: true}", "{}",
            ["speculation.index_share_for_mtp_iteration"],
        ),
        (
            "{method: dflash, model: ./d, num_speculative_tokens: 1, draft_lm_head_quantization: fp8}", "{}",
            ["speculation.draft_lm_head_quantization"],
        ),
        ("{method: eagle3, model: ./d, num_speculative_tokens: 1, draft_lm_head_quantization: fp8}", "{}", []),
    ],
)  # fmt: skip
def test_combinations_that_vllm_refuses(
    profile: Load, speculation: str, engine: str, found: list[str]
) -> None:
    text = f'vllm: ">=0.33"\ntarget: {{model: ./m}}\nspeculation: {speculation}\nengine: {engine}'
    assert places("SD134", profile(text)) == found


@pytest.mark.parametrize(
    ("method", "keys", "versions"),
    [
        ("eagle3", "draft_sample_method: probabilistic", []),
        ("eagle3", "draft_sample_method: greedy", ["0.32", "0.33"]),
        ("dflash", "draft_sample_method: probabilistic", ["0.32"]),
        ("draft_model", "draft_sample_method: probabilistic", ["0.32", "0.33"]),
        ("eagle3", "draft_sample_method: probabilistic, rejection_sample_method: block", ["0.32", "0.33"]),
    ],
)
def test_watermarks_need_drafts_that_carry_them(
    profile: Load, method: str, keys: str, versions: list[str]
) -> None:
    text = (
        f'vllm: "%s"\nspeculation: {{method: {method}, model: ./d, num_speculative_tokens: 2, {keys}}}\n'
        "engine: {watermark_config: {algorithm: gumbel}}"
    )
    for version in ("0.32", "0.33"):
        assert bool(of("SD134", profile(text % f"~={version}.0"))) == (version in versions)
