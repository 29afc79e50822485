"""config.json → shape: what it says, what its class says, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.memory.situation import situation
from specserve.models.config import Fields, UnknownArchitecture, as_stored, family, prediction_layers
from specserve.models.facts import Tensor, published
from specserve.models.shape import Attention, Latent, Shape, read_mtp, read_shape
from specserve.models.tensors import encoder_tensors, expected_tensors
from specserve.profile.schema import Profile, Speculation, Target
from tests.memory.recordings import CONFIGS


def shape_of(**config: Any) -> Shape:
    return read_shape("org/model", config)


def stored(name: str) -> dict[str, Any]:
    return CONFIGS[name]


def test_heads_that_config_json_leaves_out_are_those_of_its_class() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "model_type": "gemma3_text",
    }
    shape = shape_of(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], text_config=text)
    (mixer,) = shape.layers[0]
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, shape.vocab_size) == (8, 4, 256, 262208)


def test_a_text_config_without_a_model_type_is_read_by_the_class_of_the_whole() -> None:
    shape = shape_of(model_type="gemma3", text_config={"hidden_size": 512, "num_hidden_layers": 6})
    assert shape.model_type == "gemma3_text"


def test_a_sparse_indexer_keeps_keys_of_its_own() -> None:
    (mixer,) = shape_of(
        **{**stored("deepseek-v3"), "model_type": "deepseek_v32", "index_head_dim": 128}
    ).layers[0]
    assert isinstance(mixer, Latent)
    assert mixer.indexer_dim == 132


def test_an_unknown_model_type_is_read_by_the_usual_keys_and_says_so() -> None:
    shape = shape_of(
        model_type="brandnew", hidden_size=512, num_attention_heads=8, num_hidden_layers=2, vocab_size=100
    )
    assert not shape.is_known


@pytest.mark.parametrize(
    ("model_type", "same"),
    [
        ("gemma4_unified_text", "gemma4_text"),
        ("qwen3_vl_text", "qwen3"),
        ("qwen3_vl_moe_text", "qwen3_moe"),
        ("qwen3_omni_moe_text", "qwen3_moe"),
        ("minimax_m3_vl_text", "minimax_m3"),
        ("qwen4_exp_text", "qwen4_exp"),
        ("minimax_m2", "minimax_m2"),
        ("gemma3n_text", "gemma3n_text"),
        ("brandnew_vl", "brandnew_vl"),
    ],
)
def test_a_wrapped_or_renamed_model_type_is_one_of_its_family(model_type: str, same: str) -> None:
    assert family(model_type) == same


@pytest.mark.parametrize("model_type", ["kimi_linear", "deepseek_v4", "mimo_v2_flash", "minimax_m3_vl_text"])
def test_a_model_type_that_does_not_fit_the_usual_keys_is_refused(model_type: str) -> None:
    with pytest.raises(UnknownArchitecture, match="the KV cache of model type `") as caught:
        shape_of(
            model_type=model_type, hidden_size=512, num_attention_heads=8, num_hidden_layers=2, vocab_size=10
        )
    assert caught.value.hint is not None
    assert "--vllm installed" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": "32"}, "`num_attention_heads` in config.json of `org/model` is '32': expected a"),
        ({"num_attention_heads": True}, "is True: expected a whole number"),
        ({"hidden_size": -1}, "`hidden_size` in config.json of `org/model` is -1: expected a number from 1 up"),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` in config.json of `org/model` is 1000000000: more than"),
        ({"num_attention_heads": 5000}, "`num_attention_heads` in config.json of `org/model` is more than"),
        ({"tie_word_embeddings": 1}, "`tie_word_embeddings` in config.json of `org/model` is 1: expected true"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 5}, "` gives the kinds of only"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "`no_rope_layers` in config.json of `org/model` lists"),
        ({"layer_types": "full"}, "`layer_types` in config.json of `org/model` is 'full': expected a list of names"),
        ({"model_type": 3}, "`model_type` in config.json of `org/model` is 3: expected text"),
        ({"model_type": "gemma3", "text_config": []}, "`text_config` in config.json of `org/model` is []: expected"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_an_error_that_names_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FactError) as caught:
        shape_of(**{"model_type": "llama", **changes})
    assert message in caught.value.message


def test_a_config_json_without_a_model_type_is_an_error() -> None:
    with pytest.raises(FactError, match="`model_type` is missing"):
        shape_of(hidden_size=512)


def test_a_target_without_prediction_layers_has_no_mtp() -> None:
    with pytest.raises(FactError, match="` has no multi-token prediction layers"):
        read_mtp("org/model", stored("llama"))


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("MiniMaxAI/MiniMax-M2.5", 3),
        ("MiniMaxAI/MiniMax-M2.7", 3),
        ("deepseek-ai/DeepSeek-V3", 1),
        ("Qwen/Qwen3.5-27B", 1),
    ],
)
def test_rules_and_memory_count_the_same_prediction_layers(model: str, layers: int) -> None:
    known = published(model)
    assert known is not None
    assert len(read_mtp(model, known.config)) == prediction_layers(known.config) == layers
    block = Speculation("mtp", {"method": "mtp"})
    profile = Profile("p.yaml", "p", Target(model), speculation=block)
    taken = situation(
        profile, machine=assume("8xH200-141GB"), target=known, speculation=block, version="0.33"
    )
    assert taken.speculative.tokens == layers


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"num_mtp_modules": 7, "num_nextn_predict_layers": 1}, 7),
        ({"mtp_config": {"num_nextn_predict_layers": 2}}, 2),
        ({"thinker_config": {"text_config": {"mtp_num_hidden_layers": 0}}}, 0),
        ({"model_type": "mimo_v2", "num_nextn_predict_layers": 3}, 1),
        ({"num_mtp_modules": True, "num_mtp_layers": "2"}, None),
    ],
)  # fmt: skip
def test_prediction_layers_are_counted_by_several_keys(config: dict[str, Any], layers: int | None) -> None:
    assert prediction_layers(config) == layers


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]},
         {"a.weight": ("F8_E4M3", (130, 320)), "a.weight_scale_inv": ("F32", (2, 3))}),
        ({"quant_method": "fp8"}, {"a.weight": ("F8_E4M3", (130, 320)), "a.weight_scale": ("F32", (1,))}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128},
         {"a.qweight": ("I32", (40, 130)), "a.scales": ("F16", (3, 130)), "a.qzeros": ("I32", (3, 16))}),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}},
         {"a.weight": ("I8", (130, 320)), "a.weight_scale": ("F32", (130, 1))}),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}},
         {"a.weight_packed": ("U8", (130, 160)), "a.weight_scale": ("F8_E4M3", (130, 20)),
          "a.weight_global_scale": ("F32", (1,))}),
        ({"quant_method": "fp8", "ignore": ["re:a.*"]}, {"a.weight": ("BF16", (130, 320))}),
        ({"quant_method": "of tomorrow"}, None),
    ],
)  # fmt: skip
def test_a_quantized_weight_is_stored_as_its_format_packs_it(
    quantization: dict[str, Any], expected: dict[str, tuple[str, tuple[int, ...]]] | None
) -> None:
    config = {"quantization_config": quantization}
    found = as_stored({"a.weight": (130, 320)}, model="m", config=config, online=None)
    made = {name: Tensor(*tensor) for name, tensor in expected.items()} if expected else None
    assert found == made


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
_NAMES = sorted(CONFIGS)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(_NAMES), st.data())
def test_any_value_at_any_key_gives_a_shape_or_an_error_that_says_what_is_wrong(
    name: str, data: st.DataObject
) -> None:
    config: Mapping[str, Any] = stored(name)
    keys = data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3))
    config = {**config, **{key: data.draw(_VALUES) for key in keys}}
    try:
        shape = read_shape("org/model", config)
        if len(shape.layers) <= 64:
            sizes = expected_tensors("org/model", config) if shape.hidden_size < 10**6 else None
            if sizes:
                as_stored(sizes, model="org/model", config=config, online=None)
    except FactError as error:
        assert "org/model" in error.message


def test_the_image_encoder_of_gemma_4_has_a_position_for_rows_and_one_for_columns() -> None:
    tensors = encoder_tensors(Fields("org/model", {}), model_type="gemma4_text", hidden=2560)
    assert tensors is not None
    sizes = dict(tensors)
    assert sizes["vision_tower.patch_embedder.position_embedding_table"] == (2, 10240, 768)
    assert sizes["vision_tower.patch_embedder.input_proj.weight"] == (768, 3 * 16 * 16)
