"""Weights from a checkpoint's own tensors: names as published, types as stored, what each GPU gets of them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from specserve.errors import FactError
from specserve.memory.demand import demand
from specserve.memory.situation import Settings, Speculative
from specserve.models.facts import ModelFacts, Tensor
from specserve.models.facts import published as published_facts
from specserve.models.tensors import expected_tensors, mtp_tensors
from tests.memory.recordings import ANSWERED, FOLDER, RECORDED, facts_of, settings_of

PUBLISHED: dict[str, list[Any]] = json.loads((FOLDER / "tensors.json").read_text())
_PLAIN = [case for case in ANSWERED if case["model"] in PUBLISHED and "speculation" not in case]


def published(model: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, as transformers names them."""
    tensors = {}
    for name, shape, layers in PUBLISHED[model]:
        for layer in layers or ("",):
            tensors[name.replace("#", str(layer))] = Tensor("BF16", tuple(shape))
    return tensors


def weighed(facts: ModelFacts, **changes: Any) -> int:
    settings = Settings(max_model_len=2048, max_num_seqs=8, max_num_batched_tokens=2048, **changes)
    return demand(facts, settings=settings).stages[0].target_weights_bytes


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in _PLAIN])
def test_weights_from_headers_are_within_half_a_percent_of_vllm(case: dict[str, Any]) -> None:
    known = facts_of(case["model"])
    facts = ModelFacts(known.model, "directory", known.config, tensors=published(case["model"]))
    if settings_of(case).enable_expert_parallel or case["engine"].get("quantization"):
        return
    for mine, theirs in zip(
        demand(facts, settings=settings_of(case)).stages, RECORDED[case["name"]]["stages"], strict=True
    ):
        assert mine.target_weights_bytes == pytest.approx(theirs["target"]["parameters"], rel=0.005)


def test_parameters_are_those_of_a_published_hybrid_with_encoder_and_prediction_layer() -> None:
    """Qwen3.8-27B: counted from the headers of its 18 shards by the source of its published configuration."""
    facts = published_facts("Qwen/Qwen3.8-27B-FP8")
    assert facts is not None
    tensors, layers = expected_tensors(facts.model, facts.config), mtp_tensors(facts.model, facts.config)
    assert tensors is not None and layers is not None
    encoder = sum(math.prod(size) for name, size in tensors.items() if name.startswith("visual."))
    assert encoder == 460_730_096
    assert sum(map(math.prod, tensors.values())) - encoder == 26_895_998_464
    assert sum(map(math.prod, layers.values())) == 424_699_392
    settings = Settings(max_model_len=32768, max_num_seqs=8, max_num_batched_tokens=2048)
    (stage,) = demand(facts, Speculative("mtp", 3), settings=settings).stages
    assert stage.weights_bytes == pytest.approx(30.87e9, abs=0.005e9)  # the files of the FP8 release


def test_an_encoder_of_absurd_depth_is_an_error_that_names_the_key() -> None:
    known = facts_of("qwen3.5-vl").config
    config = {**known, "vision_config": {**known["vision_config"], "depth": 10**9}}
    with pytest.raises(FactError, match=r"`vision_config\.depth`"):
        expected_tensors("hostile", config)


def test_an_encoder_that_is_not_loaded_is_not_counted() -> None:
    facts = facts_of("qwen3.5-vl")
    text = {"architectures": ["Qwen3_5ForCausalLM"], **facts.config["text_config"]}
    assert (
        weighed(facts, has_encoders=False) == weighed(ModelFacts("text", "directory", text)) < weighed(facts)
    )


def test_a_projection_that_makes_keys_and_values_is_held_twice() -> None:
    known, tensors = facts_of("gemma4"), published("gemma4")
    assert not any(".layers.5." in name and "v_proj" in name for name in tensors)
    from_headers = ModelFacts(known.model, "directory", known.config, tensors=tensors)
    (recorded,) = RECORDED["gemma4-tp1"]["stages"]
    assert weighed(from_headers) == pytest.approx(recorded["target"]["parameters"], rel=1e-6)


def test_an_output_table_of_a_tied_model_is_not_counted_twice() -> None:
    known = facts_of("llama-tied")
    tensors = published("llama-tied")
    with_head = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    facts = [
        ModelFacts(known.model, "directory", known.config, tensors=held) for held in (tensors, with_head)
    ]
    assert weighed(facts[0]) == weighed(facts[1])


def test_prediction_layers_are_left_out_where_they_are_not_served_and_counted_where_they_are() -> None:
    known = facts_of("glm4-moe")
    layer = {"model.layers.4.eh_proj.weight": Tensor("BF16", (512, 1024)),
             "model.layers.4.embed_tokens.weight": Tensor("BF16", (151552, 512)),
             "model.layers.4.shared_head.head.weight": Tensor("BF16", (151552, 512))}  # fmt: skip
    facts = ModelFacts(known.model, "directory", known.config, tensors={**published("glm4-moe"), **layer})
    plain = ModelFacts(known.model, "directory", known.config, tensors=published("glm4-moe"))
    assert weighed(facts) == weighed(plain)
    settings = Settings(max_model_len=2048, max_num_seqs=8, max_num_batched_tokens=2048)
    served = demand(facts, Speculative("mtp", 1), settings=settings)
    assert served.stages[0].draft_weights_bytes == 512 * 1024 * 2


def test_a_quantized_checkpoint_weighs_what_it_stores() -> None:
    """gpt-oss in MXFP4: half a byte a weight, and a byte of scale for 32 of them."""
    known = facts_of("gpt-oss-mxfp4")
    tensors = published("gpt-oss")
    experts = 0
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, rows, columns = tensors.pop(name).shape
        experts += count * rows * columns
        tensors[f"{name}_blocks"] = Tensor("U8", (count, columns, rows // 32, 16))
        tensors[f"{name}_scales"] = Tensor("U8", (count, columns, rows // 32))
    stored = ModelFacts(known.model, "directory", known.config, tensors=tensors)
    assert weighed(stored) == weighed(facts_of("gpt-oss")) - 2 * experts + experts // 2 + experts // 32
    assert weighed(stored) == pytest.approx(weighed(known), rel=0.001)


def test_weights_in_a_format_that_is_not_known_are_not_guessed() -> None:
    known = facts_of("llama")
    config = {**known.config, "quantization_config": {"quant_method": "brandnew"}}
    with pytest.raises(FactError, match="quantized by `brandnew` is not known"):
        weighed(ModelFacts("org/model", "hub", config))
    with pytest.raises(FactError, match="quantized by `bitsandbytes` is not known"):
        weighed(known, quantization="bitsandbytes")


def test_a_formula_for_an_unknown_model_type_is_not_guessed() -> None:
    config = {"model_type": "brandnew", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
              "vocab_size": 10}  # fmt: skip
    with pytest.raises(FactError, match="no safetensors headers, and no formula"):
        weighed(ModelFacts("org/model", "hub", config))
