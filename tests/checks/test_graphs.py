"""Which decode steps find a CUDA graph, and what drafts take over from their target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]
HEAD = "speculation: {method: eagle3, model: ./head, num_speculative_tokens: 2}\n"


@pytest.mark.parametrize(
    ("engine", "end"),
    [
        ("max_num_seqs: 14, max_cudagraph_capture_size: 42", 40),
        ("max_num_seqs: 8, max_cudagraph_capture_size: 24", None),
        ("max_num_seqs: 1, max_cudagraph_capture_size: 2", 2),
        ("max_num_seqs: 90, max_cudagraph_capture_size: 271", 256),
        ("max_num_seqs: 9, compilation_config: {max_cudagraph_capture_size: 9}", 8),
        ("max_num_seqs: 14, max_cudagraph_capture_size: 14, enforce_eager: true", None),
        ("max_cudagraph_capture_size: 14", None),
        ("max_num_seqs: 9, max_cudagraph_capture_size: -1", None),
    ],
)
def test_a_decode_step_is_measured_in_tokens(profile: Load, engine: str, end: int | None) -> None:
    found = of("SD164", profile(f"{HEAD}engine: {{{engine}}}"))
    assert [item.message.rpartition(" ")[2] for item in found] == ([str(end)] if end else [])


@pytest.mark.parametrize(
    ("overrides", "hits"),
    [
        ("{rope_parameters: {factor: 4.0}}", 1),
        ("{text_config: {max_position_embeddings: 65536}}", 1),
        ("{architectures: [A]}", 0),
    ],
)
def test_overrides_of_positions_stay_with_the_target(profile: Load, overrides: str, hits: int) -> None:
    text = "target: {model: ./m}\nspeculation: {method: mtp, num_speculative_tokens: 1}\n"
    assert len(of("SD167", profile(f"{text}engine: {{hf_overrides: {overrides}}}"))) == hits
    assert of("SD167", profile(f"{HEAD}engine: {{hf_overrides: {overrides}}}")) == []


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
