"""Rules about models: what their config.json shows, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from tests.checks.readers import codes, facts, findings, tensors
from tests.checks.recipes import EAGLE3, LLAMA, MIMO, QWEN3, SPECULATOR, VISION

Load = Callable[[str], Profile]
NGRAM = "speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}"
DRAFT = "speculation: {method: draft_model, model: org/d, num_speculative_tokens: 4}"


def test_nothing_is_said_of_a_config_that_says_nothing(profile: Load) -> None:
    loaded = profile(f"target: {{model: org/t, tensor_parallel_size: 3, max_model_len: 9000}}\n{DRAFT}")
    assert codes(loaded, {"org/t": facts({}), "org/d": facts({})}) == []


def test_a_draft_that_could_not_be_read_is_not_judged(profile: Load) -> None:
    assert codes(profile(f"target: {{model: org/t}}\n{DRAFT}"), {"org/t": facts(LLAMA)}) == []


@pytest.mark.parametrize(
    ("config", "size", "hits"),
    [
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, 12, 1),
        ({"num_attention_heads": 24, "num_key_value_heads": 8, "kv_lora_rank": 512}, 12, 0),
        ({"num_attention_heads": 71, "num_kv_heads": 1, "model_type": "falcon"}, 2, 1),
        ({"text_config": {"num_attention_heads": 14}}, 4, 1),
        ({"num_attention_heads": "14"}, 4, 0),
        ({"num_attention_heads": [14, 16]}, 4, 0),
    ],
)
def test_heads_are_read_wherever_a_config_has_them(profile: Load, config: Any, size: int, hits: int) -> None:
    loaded = profile(f"target: {{model: org/t, tensor_parallel_size: {size}}}")
    assert codes(loaded, {"org/t": facts(config)}) == ["SD222"] * hits


def test_the_sizes_named_are_those_that_both_models_allow(profile: Load) -> None:
    loaded = profile(f"target: {{model: org/t, tensor_parallel_size: 4}}\n{DRAFT}")
    models = {
        "org/t": facts({"num_attention_heads": 28, "num_key_value_heads": 4}),
        "org/d": facts({"num_attention_heads": 14, "num_key_value_heads": 2}),
    }
    (finding,) = findings(loaded, models)
    assert finding.span.path == "speculation.model"
    assert finding.help == "`tensor_parallel_size` may be 2"


@pytest.mark.parametrize(
    ("engine", "hits"),
    [
        ("{}", 1),
        ("{generation_config: vllm}", 0),
        ("{generation_config: ./elsewhere}", 0),
        ("{override_generation_config: {min_p: 0.0}}", 0),
        ("{override_generation_config: {temperature: 0.5}}", 1),
    ],
)
def test_min_p_of_the_model_is_refused_unless_it_is_overridden(profile: Load, engine: str, hits: int) -> None:
    models = {"org/t": facts(LLAMA, generation_config={"min_p": 0.05})}
    assert codes(profile(f"target: {{model: org/t}}\n{NGRAM}\nengine: {engine}"), models) == ["SD148"] * hits
    assert codes(profile(f"target: {{model: org/t}}\nengine: {engine}"), models) == []


@pytest.mark.parametrize(
    ("versions", "context", "severity"),
    [
        ("==0.33.*", "4096", Severity.ERROR),
        ("==0.33.*", "null", Severity.WARNING),
        ("==0.32.*", "4096", Severity.WARNING),
        ("==0.31.*", "4096", Severity.WARNING),
        ("==0.33.*", "512", None),
    ],
)
def test_a_shorter_draft_shortens_the_server_from_0_33_on(
    profile: Load, versions: str, context: str, severity: Severity | None
) -> None:
    text = f'vllm: "{versions}"\ntarget: {{model: org/t, max_model_len: {context}}}\n{DRAFT}'
    models = {"org/t": facts(LLAMA), "org/d": facts({**LLAMA, "max_position_embeddings": 512})}
    found = {item.code: item.severity for item in findings(profile(text), models)}
    assert found == ({"SD227": severity} if severity else {})


def test_a_head_that_can_be_stretched_does_not_shorten_its_server(profile: Load) -> None:
    block = "speculation: {method: eagle3, model: org/d, num_speculative_tokens: 3}"
    text = f'vllm: "==0.33.*"\ntarget: {{model: org/t}}\n{block}'
    plain = {"org/t": facts(LLAMA), "org/d": facts(EAGLE3)}
    assert codes(profile(text), plain) == ["SD229"]
    yarn = {**EAGLE3, "rope_parameters": {"rope_type": "yarn", "factor": 1.0}}
    assert codes(profile(text), {**plain, "org/d": facts(yarn)}) == ["SD227"]


@pytest.mark.parametrize(
    ("target", "draft", "hits"), [((400, 10), (100, 10), 1), ((400, 10), (99, 10), 0), ((400, 10), None, 0)]
)
def test_a_draft_of_a_quarter_is_large(profile: Load, target: Any, draft: Any, hits: int) -> None:
    models = {
        "org/t": facts({}, tensors=tensors(w=target)),
        "org/d": facts({}, tensors=tensors(w=draft) if draft else None),
    }
    assert codes(profile(f"target: {{model: org/t}}\n{DRAFT}"), models) == ["SD245"] * hits


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    {
        *LLAMA, *EAGLE3, *SPECULATOR, *VISION, *MIMO, *QWEN3, "auto_map", "quantization_config", "compression_config",
        "dflash_config", "eagle_config", "rope_scaling", "kv_lora_rank", "model_max_length", "block_size", "model",
        "mtp_config", "eagle_aux_hidden_state_layer_ids", "target_hidden_size", "_name_or_path", "num_mtp_layers",
    }
)  # fmt: skip
HOSTILE = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8)
BLOCKS = [
    "{method: draft_model, model: org/d, num_speculative_tokens: 4, parallel_drafting: true, max_model_len: 77}",
    "{method: eagle3, model: org/d, num_speculative_tokens: 4}",
    "{method: dflash, model: org/d, num_speculative_tokens: 4}",
    "{method: mtp, num_speculative_tokens: 4}",
    "{method: dspark, num_speculative_tokens: 4}",
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(base=st.sampled_from([{}, LLAMA, EAGLE3, SPECULATOR, VISION, MIMO]), config=HOSTILE, more=HOSTILE)
def test_no_config_breaks_a_rule(profile: Load, base: Any, config: Any, more: Any) -> None:
    alternatives = "".join(f"\n  a{index}: {block}" for index, block in enumerate(BLOCKS))
    target = "{model: org/t, tensor_parallel_size: 4, pipeline_parallel_size: 2, max_model_len: 999, quantization: awq}"
    loaded = profile(f"target: {target}\nalternatives:{alternatives}")
    shapes = tensors(fc__weight=(4, 12), model__mtp__weight=(3,), model__layers__0__q_proj__weight=(2, 2))
    models = {
        "org/t": facts({**base, **config}, tensors=shapes, generation_config=more),
        "org/d": facts({**base, **more}, tensors=shapes),
    }
    for finding in findings(loaded, models):
        assert finding.message and not finding.message.endswith(".")
