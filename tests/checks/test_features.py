"""Features of vLLM that a way to speculate refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of

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
