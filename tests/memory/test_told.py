"""What vLLM says that its models need, as the demand of a launch: recorded answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from specserve.errors import FactError
from specserve.memory.demand import demand, demand_by_vllm
from specserve.memory.pool import Demand
from specserve.memory.situation import Settings, Speculative
from tests.memory.recordings import ANSWERED, RECORDED, facts_of, settings_of


def told(case: Mapping[str, Any], answer: Mapping[str, Any], *, settings: Settings | None = None) -> Demand:
    speculation = case.get("speculation") or {}
    draft = facts_of(speculation["model"]) if "model" in speculation else None
    tokens = speculation.get("num_speculative_tokens", 0)
    speculative = Speculative(speculation.get("method"), tokens, draft)
    settings = settings or settings_of(case)
    return demand_by_vllm(answer, facts_of(case["model"]), speculative, settings=settings)


def case_of(name: str) -> Mapping[str, Any]:
    (case,) = (case for case in ANSWERED if case["name"] == name)
    return case


@pytest.mark.parametrize(
    "name",
    ["llama-tp4", "llama+draft-tp2", "llama+eagle3-tp2", "gemma3-tp1", "gpt-oss+draft", "deepseek-v3+mtp-tp2",
     "llama4-tp2", "llama-tied-pp2", "mistral-window-tp2", "qwen3-moe-ep2", "gemma4+mtp-tp2", "qwen3.5+mtp-tp2"],
)  # fmt: skip
def test_vllms_answer_becomes_the_demand_with_vllm_as_its_basis(name: str) -> None:
    case, answer = case_of(name), RECORDED[name]
    found = told(case, answer)
    assert found.basis == "vllm"
    for mine, theirs in zip(found.stages, answer["stages"], strict=True):
        assert mine.target_weights_bytes == theirs["target"]["parameters"]
        assert mine.draft_weights_bytes == theirs["draft"]["parameters"]
    (plan,) = answer["plans"]
    assert found.tokens([plan["kv_bytes"]] * len(found.stages)) == plan["tokens"]


def test_an_answer_from_the_cpu_is_put_into_the_blocks_of_a_gpu() -> None:
    settings = Settings(
        max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=1024, tensor_parallel_size=2
    )
    found = told(case_of("llama-tp2"), RECORDED["llama-tp2"], settings=settings)
    formula = demand(facts_of("llama"), settings=settings)
    assert (found.groups, found.stages) == (formula.groups, formula.stages)


def test_a_kind_of_layer_that_is_not_known_is_an_error() -> None:
    answer = json.loads(json.dumps(RECORDED["llama-tp1"]).replace("FullAttentionSpec", "CrossAttentionSpec"))
    with pytest.raises(FactError, match="vLLM reported KV cache layers of an unknown kind, `"):
        told(case_of("llama-tp1"), answer)
