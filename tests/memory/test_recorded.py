"""The formula against vLLM itself: models built on the meta device, recorded by `scripts/record_memory.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from specserve.models.facts import ModelFacts, Tensor
from specserve.models.tensors import head_tensors
from tests.memory.recordings import (
    ANSWERED,
    CASES,
    RECORDED,
    SERVED,
    WITHOUT_FORMULA,
    demand_of,
    facts_of,
)

Case = Mapping[str, Any]
_HALF_A_PERCENT = 0.005
_ONE_PERCENT = 0.01


def _named(cases: Iterable[Case]) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases]


def _bytes_per_token(layers: Iterable[Mapping[str, Any]]) -> float:
    return float(
        sum(layer["page_bytes"] / layer["block_size"] for layer in layers if layer["kind"] != "MambaSpec")
    )


_OF_FORMULA = [
    case
    for case in ANSWERED
    if case["name"] != "llama+eagle3-own-embed" and case["model"] not in WITHOUT_FORMULA
]


@pytest.mark.parametrize("case", _named(_OF_FORMULA))
def test_weights_of_each_stage_are_within_half_a_percent_of_vllm(case: Case) -> None:
    for mine, theirs in zip(demand_of(case).stages, RECORDED[case["name"]]["stages"], strict=True):
        assert mine.target_weights_bytes == pytest.approx(theirs["target"]["parameters"], rel=_HALF_A_PERCENT)
        assert mine.draft_weights_bytes == pytest.approx(theirs["draft"]["parameters"], rel=_HALF_A_PERCENT)


@pytest.mark.parametrize("case", _named(ANSWERED))
def test_kv_bytes_per_token_are_those_of_vllm(case: Case) -> None:
    for mine, theirs in zip(demand_of(case).stages, RECORDED[case["name"]]["stages"], strict=True):
        drafted = [layer for layer in theirs["kv"] if layer["draft"]]
        own = [layer for layer in theirs["kv"] if not layer["draft"]]
        assert mine.target_kv_bytes_per_token == _bytes_per_token(own)
        assert mine.draft_kv_bytes_per_token == _bytes_per_token(drafted)


@pytest.mark.parametrize("case", _named(ANSWERED))
def test_blocks_and_tokens_of_a_budget_are_within_one_percent_of_vllms_planner(case: Case) -> None:
    mine = demand_of(case)
    for plan in RECORDED[case["name"]]["plans"]:
        given = [plan["kv_bytes"]] * len(mine.stages)
        assert mine.blocks(given) == pytest.approx(plan["blocks"], rel=_ONE_PERCENT)
        assert mine.tokens(given) == pytest.approx(plan["tokens"], rel=_ONE_PERCENT)
        assert mine.concurrency(given) == pytest.approx(plan["concurrency"], rel=_ONE_PERCENT)


@pytest.mark.parametrize("case", _named(ANSWERED))
def test_block_tables_are_those_of_vllm(case: Case) -> None:
    theirs = [plan["groups"] for plan in RECORDED[case["name"]]["plans"] if "groups" in plan]
    length = case["engine"]["max_model_len"]
    mine = sorted((group.block_size, group.blocks(length)) for group in demand_of(case).groups)
    for groups in theirs:
        assert mine == sorted((group["block_size"], group["blocks_per_request"]) for group in groups)


@pytest.mark.parametrize("case", _named(ANSWERED))
def test_lookahead_slots_are_those_of_vllm(case: Case) -> None:
    assert demand_of(case).lookahead_tokens == RECORDED[case["name"]]["lookahead_tokens"]


@pytest.mark.parametrize("case", _named(SERVED))
def test_tokens_are_those_that_a_served_model_logs(case: Case) -> None:
    mine = demand_of(case)
    assert mine.tokens(case["kv_bytes"] * len(mine.stages)) == pytest.approx(case["tokens"], rel=_ONE_PERCENT)


def test_a_head_that_brings_its_own_embeddings_is_counted_with_them() -> None:
    (case,) = (case for case in CASES if case["name"] == "llama+eagle3-own-embed")
    head = facts_of("eagle3-llama")
    sizes = head_tensors(head.model, head.config, method="eagle3", target_hidden_size=512)
    assert sizes is not None
    tensors = {name: Tensor("I64" if name == "d2t" else "BF16", size) for name, size in sizes.items()}
    tensors["embed_tokens.weight"] = Tensor("BF16", (32003, 512))
    mine = demand_of(case, draft=replace(head, tensors=tensors))
    theirs = RECORDED[case["name"]]["stages"][0]["draft"]["parameters"]
    assert mine.stages[0].draft_weights_bytes == pytest.approx(theirs, rel=_HALF_A_PERCENT)
    assert any("has its own embeddings" in note for note in mine.notes)


def test_a_head_of_the_speculators_library_has_embeddings_without_its_headers_too() -> None:
    (case,) = (case for case in CASES if case["name"] == "llama+eagle3-own-embed")
    own = facts_of("eagle3-llama").config
    outer = {"speculators_model_type": "eagle3", "draft_vocab_size": own.get("draft_vocab_size")}
    head = ModelFacts("org/head", "published", {**outer, "transformer_layer_config": own})
    mine = demand_of(case, draft=head)
    theirs = RECORDED[case["name"]]["stages"][0]["draft"]["parameters"]
    assert mine.stages[0].draft_weights_bytes == pytest.approx(theirs, rel=_HALF_A_PERCENT)
    assert any("has its own embeddings" in note for note in mine.notes)


@pytest.mark.parametrize(
    ("tensor_parallel_size", "weights_bytes"), [(1, 16_060_522_496), (4, 4_015_529_984), (16, 1_037_836_288)]
)
def test_llama_8b_weighs_what_is_known_of_it(tensor_parallel_size: int, weights_bytes: int) -> None:
    engine = {
        "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192,
        "tensor_parallel_size": tensor_parallel_size,
    }  # fmt: skip
    (stage,) = demand_of({"model": "llama-8b", "engine": engine}).stages
    assert stage.target_weights_bytes == weights_bytes
