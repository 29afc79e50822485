"""Which decode steps find a CUDA graph, and what drafts take over from their target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of

Load = Callable[[str], Profile]
HEAD = "speculation: {method: eagle3, model: ./head, num_speculative_tokens: 2}\n"


@pytest.mark.parametrize(
    ("engine", "messages"),
    [
        ("max_num_seqs: 14, max_cudagraph_capture_size: 42",
         ["14 requests has 42 tokens; CUDA graphs end at 40 tokens"]),
        ("max_num_seqs: 8, max_cudagraph_capture_size: 24", []),
        ("max_num_seqs: 1, max_cudagraph_capture_size: 2", ["1 request has 3 tokens; CUDA graphs end at 2 tokens"]),
        ("max_num_seqs: 1, max_cudagraph_capture_size: 4", []),
        ("max_num_seqs: 2, max_cudagraph_capture_size: 7", ["2 requests has 6 tokens; CUDA graphs end at 4 tokens"]),
        ("max_num_seqs: 90, max_cudagraph_capture_size: 271",
         ["90 requests has 270 tokens; CUDA graphs end at 256 tokens"]),
        ("max_num_seqs: 14, cudagraph_capture_sizes: [3, 42]", []),
        ("max_num_seqs: 14, cudagraph_capture_sizes: [3, 41]",
         ["14 requests has 42 tokens; CUDA graphs end at 41 tokens"]),
        ("max_num_seqs: 9, compilation_config: {max_cudagraph_capture_size: 9}",
         ["9 requests has 27 tokens; CUDA graphs end at 8 tokens"]),
        ("max_num_seqs: 14, max_cudagraph_capture_size: 14, enforce_eager: true", []),
        ("max_cudagraph_capture_size: 14", []),
        ("max_num_seqs: 1k, cudagraph_capture_sizes: [1k, 512]",
         ["1000 requests has 3000 tokens; CUDA graphs end at 1000 tokens"]),
        ("max_num_seqs: 9, compilation_config: {cudagraph_capture_sizes: ['16', x]}", []),
        ("max_num_seqs: 9, cudagraph_capture_sizes: [[1k], 2]", []),
        ("max_num_seqs: 9, max_cudagraph_capture_size: -1", []),
        ("max_num_seqs: 9, max_cudagraph_capture_size: 1000000000000000000", []),
    ],
)  # fmt: skip
def test_a_decode_step_is_measured_in_tokens(profile: Load, engine: str, messages: list[str]) -> None:
    found = of("SD164", profile(f"{HEAD}engine: {{{engine}}}"))
    assert [item.message.removeprefix("a decode step of ") for item in found] == messages


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
    ("k", "requests", "gpu", "hits"),
    [
        (2, "", "L4-24GB", 0),
        (7, "", "L4-24GB", 0),  # 256 requests of 8 tokens are 2,048
        (8, "", "L4-24GB", 1),
        (2, "max_num_seqs: 800", "L4-24GB", 1),
        (2, "max_num_seqs: 800", "H100-80GB", 0),
        (15, "max_num_seqs: 800", "H100-80GB", 0),
        (8, "", "cpu", 0),
        (8, "", "B9000", 0),
    ],
)
def test_a_default_step_is_named_where_drafts_overfill_it(
    profile: Load, k: int, requests: str, gpu: str, hits: int
) -> None:
    block = f"speculation: {{method: eagle3, model: ./head, num_speculative_tokens: {k}}}"
    found = of("SD138", profile(f"{block}\nengine: {{{requests}}}\nhardware: {{accelerator: {gpu}}}"))
    assert len(found) == hits


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
