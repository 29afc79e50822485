"""Speculation beside adapters, pipeline stages and data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]


@pytest.mark.parametrize(
    ("block", "hits"),
    [
        ("{method: eagle3, model: ./h, num_speculative_tokens: 2}", 1),
        ("{method: draft_model, model: ./d, num_speculative_tokens: 2}", 1),
        ("{method: mtp, num_speculative_tokens: 1}", 1),
        ("{method: ngram, num_speculative_tokens: 2}", 0),
        ("{method: suffix}", 0),
    ],
)
def test_adapters_reach_no_draft_that_is_a_model(profile: Load, block: str, hits: int) -> None:
    text = f"target: {{model: ./m}}\nspeculation: {block}\nengine: {{enable_lora: %s}}"
    assert len(of("SD139", profile(text % "true"))) == hits
    assert of("SD139", profile(text % "false")) == []


@pytest.mark.parametrize(("stages", "method", "hits"), [(2, "mtp", 1), (1, "mtp", 0), (2, "eagle3", 0)])
def test_prediction_layers_do_not_like_pipeline_stages(
    profile: Load, stages: int, method: str, hits: int
) -> None:
    head = "model: ./h, " if method == "eagle3" else ""
    text = (
        f"target: {{model: ./m, tensor_parallel_size: 2, pipeline_parallel_size: {stages}}}\n"
        f"speculation: {{method: {method}, {head}num_speculative_tokens: 1}}"
    )
    found = of("SD140", profile(text))
    assert [item.help for item in found] == ["use tensor parallelism, without pipeline stages"] * hits
