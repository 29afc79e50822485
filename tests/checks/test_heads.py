"""Rules about draft heads and prediction layers: which fit their target, which vLLM knows, how far they draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specserve.models.facts import Tensor
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions
from tests.checks.readers import codes, facts, findings, tensors
from tests.checks.recipes import EAGLE3, LLAMA, MIMO, PACKED, QUARK, QWEN2, QWEN3, SPECULATOR

Load = Callable[[str], Profile]
TARGET = "target: {model: org/t, max_model_len: 2048}"
LLAMA_8B = {**LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256}
LLAMA_70B = {**LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "vocab_size": 128256}
EAGLE3_8B = {**EAGLE3, "hidden_size": 4096, "draft_vocab_size": 32000, "vocab_size": 128256}
DFLASH = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def block(method: str, *, k: int = 3, more: str = "") -> str:
    return f"{TARGET}\nspeculation: {{method: {method}, model: org/d, num_speculative_tokens: {k}{more}}}"


@pytest.mark.parametrize(
    ("method", "k", "target", "head"),
    [
        ("eagle3", 3, LLAMA_8B, EAGLE3_8B),
        ("eagle", 3, LLAMA_8B, {**LLAMA_8B, "num_hidden_layers": 1}),
        ("eagle3", 3, LLAMA_70B, {**EAGLE3_8B, "hidden_size": 6144, "target_hidden_size": 8192}),
        (
            "eagle3",
            3,
            QWEN3,
            {**SPECULATOR, "speculators_config": {"verifier": {"name_or_path": "org/t-FP8"}}},
        ),
        ("eagle3", 3, QWEN3, {**QWEN3, "architectures": ["Eagle3Qwen3ForCausalLM"], "num_hidden_layers": 1}),
        ("dflash", 15, {**QWEN3, "num_hidden_layers": 36}, DFLASH),
        ("eagle", 3, QWEN2, {**QWEN2, "architectures": ["EagleLlamaForCausalLM"]}),
        (
            "mtp",
            4,
            LLAMA,
            {"model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"]},
        ),
    ],
)
def test_a_published_kind_of_head_is_sound(
    profile: Load, method: str, k: int, target: Any, head: Any
) -> None:
    assert codes(profile(block(method, k=k)), {"org/t": facts(target), "org/d": facts(head)}) == []


@pytest.mark.parametrize(
    ("method", "name", "asked"),
    [
        ("eagle", "Qwen2ForCausalLM", "EagleQwen2ForCausalLM"),
        ("eagle", "LlamaForCausalLMEagle3", "EagleLlamaForCausalLMEagle3"),
        ("eagle3", "GlmForCausalLM", "Eagle3GlmForCausalLM"),
        ("dflash", "LlamaForCausalLM", "DFlashLlamaForCausalLM"),
        ("eagle", "EagleLlamaForCausalLM", None),
        ("eagle3", "Eagle3LlamaForCausalLM", None),
        ("eagle3", "LlamaForCausalLM", None),
    ],
)
def test_a_head_is_known_under_the_name_that_vllm_gives_it(
    profile: Load, method: str, name: str, asked: str | None
) -> None:
    head = {**LLAMA, "architectures": [name], "dflash_config": {"mask_token_id": 1}}
    found = findings(profile(block(method)), {"org/t": facts(LLAMA), "org/d": facts(head)})
    assert [item.message for item in found if item.code == "SD235"] == (
        [f"vLLM {', '.join(known_versions()[-2:])} has no head of the class `{asked}`"] if asked else []
    )


@pytest.mark.parametrize(
    ("head", "hits"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, 1),
        (SPECULATOR, 1),
        ({**MIMO}, 1),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}, 1),
        ({"architectures": ["Qwen4ExpMTP"], "model_type": "qwen4_exp_mtp"}, 0),
        ({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h"}, 0),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, 0),
        ({}, 0),
    ],
)
def test_what_is_no_draft_model_is_not_run_as_one(profile: Load, head: Any, hits: int) -> None:
    models = {"org/t": facts(LLAMA), "org/d": facts(head)}
    assert codes(profile(block("draft_model")), models).count("SD101") == hits


@pytest.mark.parametrize(
    ("method", "inputs", "hits"),
    [("eagle3", 192, 0), ("eagle3", 128, 1), ("eagle", 128, 0), ("eagle", 192, 1), ("eagle3", 256, 0)],
)
def test_the_first_matrix_tells_an_eagle_head_from_an_eagle3_head(
    profile: Load, method: str, inputs: int, hits: int
) -> None:
    head = facts({**LLAMA, "num_hidden_layers": 1}, tensors=tensors(fc__weight=(64, inputs)))
    assert codes(profile(block(method)), {"org/t": facts(LLAMA), "org/d": head}).count("SD237") == hits


@pytest.mark.parametrize(
    ("more", "hits"),
    [
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 7]}}, 0),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 8]}}, 1),
        ({"eagle_aux_hidden_state_layer_ids": "2, 4, 9"}, 0),
    ],
)
def test_a_head_reads_layers_that_the_target_has(profile: Load, more: Any, hits: int) -> None:
    models = {"org/t": facts(LLAMA), "org/d": facts({**EAGLE3, **more})}
    assert codes(profile(block("eagle3")), models).count("SD237") == hits


def test_a_directory_does_not_say_which_model_it_holds(profile: Load) -> None:
    text = block("eagle3").replace("org/t", "/models/t")
    head = facts({**SPECULATOR, "target_hidden_size": 64})
    assert codes(profile(text), {"/models/t": facts(LLAMA), "org/d": head}) == []
    named = facts({**LLAMA, "_name_or_path": "org/Small-Llama"})
    assert codes(profile(text), {"/models/t": named, "org/d": head}) == ["SD237"]


def test_a_published_head_of_another_width_is_one_finding_that_names_its_target(profile: Load) -> None:
    text = block("eagle3").replace("org/t", "Qwen/Qwen3-32B").replace("org/d", "AngelSlim/Qwen3-14B_eagle3")
    models = {
        "Qwen/Qwen3-32B": facts({**QWEN3, "hidden_size": 5120}),
        "AngelSlim/Qwen3-14B_eagle3": facts({**EAGLE3, "hidden_size": 64}),
    }
    assert codes(profile(text), models) == ["SD237"]


@pytest.mark.parametrize(
    ("method", "k", "hits"), [("dflash", 15, 0), ("dflash", 16, 1), ("dspark", 16, 0), ("dspark", 17, 1)]
)
def test_a_block_holds_so_many_drafts(profile: Load, method: str, k: int, hits: int) -> None:
    head = {**DFLASH, "architectures": ["Qwen3DSparkModel"] if method == "dspark" else ["DFlashDraftModel"]}
    models = {"org/t": facts({**QWEN3, "num_hidden_layers": 36}), "org/d": facts(head)}
    assert codes(profile(block(method, k=k)), models) == ["SD242"] * hits


def test_a_head_that_drafts_its_anchor_too_fills_the_block(profile: Load) -> None:
    head = {**DFLASH, "dflash_config": {**DFLASH["dflash_config"], "sample_from_anchor": True}}
    models = {"org/t": facts({**QWEN3, "num_hidden_layers": 36}), "org/d": facts(head)}
    assert codes(profile(block("dflash", k=16)), models) == []


def mtp(k: int) -> str:
    return f"{TARGET}\nspeculation: {{method: mtp, num_speculative_tokens: {k}}}"


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("mtp.fc.weight", 0),
        ("model.layers.8.enorm.weight", 0),
        ("model.layers.7.mlp.w", 1),
        ("lm_head.weight", 1),
    ],
)
def test_prediction_layers_are_known_by_their_names(profile: Load, name: str, hits: int) -> None:
    config = {**LLAMA, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}
    models = {"org/t": facts(config, tensors={name: Tensor("BF16", (4,))})}
    assert codes(profile(mtp(1)), models) == ["SD231"] * hits


@pytest.mark.parametrize(
    ("more", "dtype", "hits"),
    [
        ({}, "BF16", 1),
        ({}, "I32", 0),
        ({"ignore": ["lm_head", "re:.*mtp.*"]}, "BF16", 0),
        ({"ignore": ["model.mtp_layers.0.mlp.up_proj"]}, "BF16", 0),
        ({"format": "float-quantized"}, "BF16", 0),
        ({"quant_method": "fp8"}, "BF16", 0),
        (QUARK, "BF16", 1),
        ({**QUARK, "exclude": ["*mtp_layers*"]}, "BF16", 0),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "BF16", 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "BF16", 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.mtp_layers*"]}, "BF16", 0),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "BF16", 0),
    ],
)
def test_a_packed_checkpoint_lists_what_is_not_packed(
    profile: Load, more: Any, dtype: str, hits: int
) -> None:
    name = "model.mtp_layers.0.mlp.up_proj.weight"
    config = {**MIMO, "quantization_config": {**PACKED, **more}}
    models = {"org/t": facts(config, tensors={name: Tensor(dtype, (8, 8))})}
    assert codes(profile(mtp(1)), models) == ["SD234"] * hits


@pytest.mark.parametrize(
    ("name", "method", "hits"),
    [
        ("GemmaForCausalLM", "eagle3", 1),
        ("GemmaForCausalLM", "eagle", 0),
        ("GemmaForCausalLM", "draft_model", 0),
        ("LlamaForCausalLM", "eagle3", 0),
        ("SmolLM3ForCausalLM", "eagle3", 0),
    ],
)
def test_a_target_hands_out_its_hidden_states_or_not(
    profile: Load, name: str, method: str, hits: int
) -> None:
    models = {"org/t": facts({**LLAMA, "architectures": [name]}), "org/d": facts(EAGLE3)}
    assert codes(profile(block(method)), models).count("SD224") == hits


@pytest.mark.parametrize(
    "head",
    [
        {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"},
        {"architectures": ["Gemma4UnifiedAssistant"], "model_type": "gemma4_unified_assistant"},
        {"architectures": ["Qwen4ExpMTP"], "model_type": "qwen4_exp_mtp"},
        {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"},
        {"architectures": ["DSparkDraftModel"], "model_type": "qwen3"},
        {"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant"},
    ],
)
def test_a_draft_whose_method_vllm_sees_is_no_error(profile: Load, head: Any) -> None:
    models = {"org/t": facts(LLAMA), "org/d": facts(head)}
    assert "SD101" not in codes(profile(block("draft_model")), models)
