"""How long a sequence a model takes."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.vllm.limits import context_length

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 4096),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "longrope"}}, 2048),
        ({"original_max_position_embeddings": 2048, "rope_scaling": {"type": "su"}}, 2048),
        ({"rope_scaling": {"type": "su", "original_max_position_embeddings": 2048}}, 4096),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"n_positions": 1024, "max_seq_len": 512}, 512),
    ],
)
def test_the_context_is_what_vllm_derives(config: dict[str, Any], length: int) -> None:
    assert context_length({"max_position_embeddings": 4096, **config}) == length


def test_yarn_is_in_the_context_already() -> None:
    assert context_length({"max_position_embeddings": 32768, "rope_scaling": YARN}) == 32768


@pytest.mark.parametrize(
    "config", [{}, {"max_position_embeddings": "4096"}, {"max_position_embeddings": None}]
)
def test_a_context_that_is_not_told_is_not_known(config: dict[str, Any]) -> None:
    assert context_length(config) is None
