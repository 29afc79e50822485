"""config.json: its language part, whole numbers, prediction layers; for everybody who asks."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.errors import FactError
from specserve.models.config import integer, prediction_layers, quantization_of, text_config

FP8 = {"quant_method": "fp8"}


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"hidden_size": 8}},
        {"model_type": "x", "llm_config": {"hidden_size": 8}},
        {"thinker_config": {"text_config": {"hidden_size": 8}, "hidden_size": 4}},
        {"speculators_model_type": "eagle3", "transformer_layer_config": {"hidden_size": 8}},
        {"model_type": "eagle", "model": {"hidden_size": 8, "model_type": "llama"}},
        {"hidden_size": 8, "model": "a name"},
    ],
)
def test_the_language_part_is_found_wherever_it_lies(config: dict[str, Any]) -> None:
    assert text_config(config)["hidden_size"] == 8


def test_what_stands_outside_for_the_whole_model_is_in_the_language_part_unless_it_says_otherwise() -> None:
    outer = {"dtype": "bfloat16", "tie_word_embeddings": True, "quantization_config": FP8, "other": 1}
    found = text_config({**outer, "text_config": {"tie_word_embeddings": False}})
    assert found == {"dtype": "bfloat16", "tie_word_embeddings": False, "quantization_config": FP8}
    head = text_config({"draft_vocab_size": 5, "transformer_layer_config": {"model_type": "llama"}})
    assert head == {"draft_vocab_size": 5, "model_type": "llama"}


@pytest.mark.parametrize("value", [True, "8", 0, -1, 1.5, 1 << 40, [8]])
def test_what_is_no_whole_number_is_an_error_that_names_the_key(value: Any) -> None:
    with pytest.raises(FactError, match=r"`heads` in config\.json is "):
        integer({"heads": value}, "heads")


def test_a_whole_number_is_that_of_the_first_key() -> None:
    assert integer({"a": None, "b": 2, "c": 3}, "a", "b", "c") == 2
    assert integer({}, "a", default=7) == 7
    assert integer({"a": 0}, "a", least=0) == 0
    with pytest.raises(FactError, match="`a` is missing"):
        integer({}, "a", "b")


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_nextn_predict_layers": 1}, 1),
        ({"num_mtp_modules": 3, "num_nextn_predict_layers": 1}, 3),
        ({"text_config": {"mtp_num_hidden_layers": 2}}, 2),
        ({"mtp_config": {"n_predict": 4}}, 4),
        ({"num_nextn_predict_layers": 0}, 0),
        ({"model_type": "mimo_v2"}, 1),
        ({"num_nextn_predict_layers": "2"}, None),
        ({}, None),
    ],
)
def test_prediction_layers_are_counted_in_one_place(config: dict[str, Any], count: int | None) -> None:
    assert prediction_layers(config) == count


def test_the_quantization_may_stand_in_the_language_part() -> None:
    for config in ({"quantization_config": FP8}, {"text_config": {"compression_config": FP8}}):
        assert quantization_of(config) == FP8
    assert quantization_of({"quantization_config": "fp8"}) == {}
