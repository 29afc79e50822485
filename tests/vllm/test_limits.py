"""What a step of vLLM holds, which CUDA graphs it captures, and how long a sequence a model takes."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.vllm.limits import captured_graphs, context_length
from specserve.vllm.versions import known_versions


@pytest.mark.parametrize(
    ("seqs", "more", "graphs", "largest"),
    [
        # in pieces for 51 sizes up to 512, whole for the 35 of them that 256 requests can have
        (256, {}, 51 + 35, 512),
        (1024, {}, 51 + 51, 512),
        (1024, {"blackwell": True}, 83 + 83, 1024),
        (1, {}, 2 + 1, 2),
        (100, {}, 29 + 16, 200),  # 100 is not a multiple of 8
        (256, {"whole": False}, 51, 512),
        # 1,024 tokens in a step leave 128 requests of 8 tokens
        (256, {"max_num_batched_tokens": 128}, 19 + 19, 128),
        # what the profile sets
        (256, {"sizes": (1, 2, 4)}, 3 + 3, 4),
        (256, {"largest": 16}, 5 + 5, 16),
    ],
)
def test_graphs_are_those_of_vllm(seqs: int, more: dict[str, object], graphs: int, largest: int) -> None:
    arguments: dict[str, object] = {"max_num_seqs": seqs, "max_num_batched_tokens": 8192, **more}
    assert captured_graphs(**arguments) == (graphs, largest)  # type: ignore[arg-type]


def test_with_speculation_a_decode_step_has_multiples_of_k_plus_1_and_the_draft_has_graphs_of_its_own() -> (
    None
):
    plain = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192)
    verified = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4)
    drafted = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4, drafts=True)
    assert plain == (11 + 7, 64)
    # 4, 8, 16, 32, 64, 96 and 128 tokens; of these 4 to 128 lie on the grid of sizes up to 256
    assert verified == (35 + 7, 256)
    assert drafted == (35 + 14, 256)


def test_tiers_of_a_schedule_have_graphs_each() -> None:
    one = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4)
    two = captured_graphs(max_num_seqs=32, max_num_batched_tokens=8192, decode_tokens=4, tiers=2)
    assert two.graphs > one.graphs


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize("version", known_versions())
@pytest.mark.parametrize(
    ("config", "most", "default"),
    [
        ({}, 4096, 4096),
        ({"model_max_length": 8192}, 8192, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384, 16384),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 2048, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 4096, 4096),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096, 4096),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "longrope"}}, 4096, 2048),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "su"}}, 4096, 2048),
        ({"rope_scaling": {"type": "su", "original_max_position_embeddings": 2048}}, 4096, 4096),
        (
            {
                "original_max_position_embeddings": 2048,
                "rope_scaling": {"type": "longrope"},
                "model_max_length": 100_000,
            },
            100_000,
            2048,
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192, 8192),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096, 4096),
        ({"n_positions": 1024, "max_seq_len": 512}, 512, 512),
    ],
)
def test_the_context_is_what_vllm_derives(
    config: dict[str, Any], most: int, default: int, version: str
) -> None:
    length = context_length({"max_position_embeddings": 4096, **config}, version)
    assert length is not None and (length.most, length.default) == (most, default)


def test_yarn_is_in_the_context_already() -> None:
    length = context_length({"max_position_embeddings": 32768, "rope_scaling": YARN}, "0.33.0")
    assert length is not None and (length.most, length.default) == (32768, 32768)


@pytest.mark.parametrize(
    "config", [{}, {"max_position_embeddings": "4096"}, {"max_position_embeddings": None}]
)
def test_a_context_that_is_not_told_is_not_known(config: dict[str, Any]) -> None:
    assert context_length(config, "0.33") is None
