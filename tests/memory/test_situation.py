"""A profile after vLLM's defaults, as far as memory depends on it: batch sizes, runner, length, K, promises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.hardware.accelerators import assume
from specserve.memory.breakdown import sizes_of
from specserve.memory.situation import (
    MemorySituation,
    PromisedLoad,
    batch_of,
    length_of,
    runner_of,
    situation,
)
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.facts import READ
from tests.memory.recordings import estimate

Load = Callable[[str], Profile]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip


def facts(**config: Any) -> ModelFacts:
    return ModelFacts("org/m", "directory", {**CONFIG, **config})


def of(
    profile: Profile, machine: str = "1xH100-80GB", *, version: str = "0.33", draft: ModelFacts | None = None
) -> MemorySituation:
    return situation(
        profile,
        target=facts(),
        machine=assume(machine),
        version=version,
        speculation=profile.speculation,
        draft=draft,
    )


@pytest.mark.parametrize(
    ("machine", "tokens", "seqs"),
    [
        ("1xH100-80GB", 8192, 1024),
        ("8xB200-180GB", 16384, 1024),
        ("1xA100-80GB", 2048, 256),
        ("1xL4-24GB", 2048, 256),
        ("cpu", 2048, 128),
    ],
)
def test_batch_sizes_depend_on_the_machine(profile: Load, machine: str, tokens: int, seqs: int) -> None:
    found = of(profile(""), machine).settings
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(
    ("machine", "version", "sizes"),
    [
        ("1xB200-180GB", "0.27", (8192, 1024)),
        ("1xB200-180GB", "0.28", (16384, 1024)),
        ("1xDGX-Spark-128GB", "0.32", (8192, 1024)),
        ("1xDGX-Spark-128GB", "0.33", (2048, 256)),
        ("1xA100-80GB", "0.33", (2048, 256)),
    ],
)
def test_batch_sizes_of_large_and_integrated_gpus_depend_on_the_version(
    machine: str, version: str, sizes: tuple[int, int]
) -> None:
    assert batch_of(assume(machine), version) == sizes


def test_what_the_profile_says_wins_over_the_defaults(profile: Load) -> None:
    text = """
        target: {model: org/m, max_model_len: 2K, tensor_parallel_size: 2, pipeline_parallel_size: 3}
        engine: {max_num_seqs: 64, max_num_batched_tokens: 4k, gpu_memory_utilization: 0.8, enforce_eager: true,
          kv_cache_dtype: fp8, enable_prefix_caching: false, kv_cache_memory_bytes: 2G}
    """
    found = of(profile(text))
    assert (found.settings.max_model_len, found.settings.max_num_batched_tokens) == (2048, 4000)
    assert (found.settings.tensor_parallel_size, found.settings.pipeline_parallel_size) == (2, 3)
    assert (found.gpu_memory_utilization, found.enforce_eager, found.settings.kv_cache_dtype) == (
        0.8,
        True,
        "fp8",
    )
    assert (found.kv_cache_memory_bytes, found.settings.enable_prefix_caching) == (2**31, False)


def test_a_v2_draft_lowers_the_target_to_its_own_context(profile: Load) -> None:
    text = "speculation: {method: draft_model, model: org/d, num_speculative_tokens: 3}"
    short = facts(max_position_embeddings=1024)
    assert of(profile(text), draft=short).settings.max_model_len == 1024
    assert of(profile(text), version="0.26", draft=short).settings.max_model_len == 4096


def test_the_cache_of_a_cpu_is_told_by_the_profile_its_environment_or_specserve(profile: Load) -> None:
    assert of(profile("engine: {kv_cache_memory_bytes: 1G}"), "cpu").kv_cache_memory_bytes == 2**30
    assert of(profile('env: {VLLM_CPU_KVCACHE_SPACE: "3"}'), "cpu").kv_cache_memory_bytes == 3 * 2**30
    assert of(profile("engine: {gpu_memory_utilization: 0.5}"), "cpu").kv_cache_memory_bytes is None
    assert 2**28 <= (of(profile(""), "cpu").kv_cache_memory_bytes or 0) <= 2**32
    assert of(profile("")).kv_cache_memory_bytes is None


def test_a_promise_counts_where_it_says_how_long_its_requests_are(profile: Load) -> None:
    text = """
        expect:
          - {concurrency: 16, prompt_tokens: {p50: 800, p95: 4000}, output_tokens: {p50: 300}}
          - {concurrency: 8}
    """
    assert of(profile(text)).promises == (PromisedLoad(16, 1100),)


@pytest.mark.parametrize(
    ("version", "keys", "env", "expected"),
    [
        ("0.33", {}, {}, "v2"),
        ("0.32.1", {"method": "eagle3"}, {}, "v2"),
        ("0.33", {"method": "suffix"}, {}, "v1"),
        ("0.33", {"method": "draft_model", "use_heterogeneous_vocab": True}, {}, "v1"),
        ("0.33", {"method": "eagle", "parallel_drafting": True}, {}, "v1"),
        ("0.33", {"method": "dflash", "parallel_drafting": True}, {}, "v2"),
        ("0.33", {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v1"),
        ("0.26", {}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "v2"),
        ("0.26", {"method": "draft_model"}, {}, "v1"),
        ("0.26", {"method": "dspark"}, {}, "v2"),
        ("0.33", {"method": "draft_model"}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v1"),
        ("0.33", {"method": "draft_model", "enable_adaptive_verification": True}, {}, "v2"),
    ],
)
def test_the_runner_is_the_one_that_vllm_would_take(
    version: str, keys: dict[str, Any], env: dict[str, str], expected: str
) -> None:
    asked = Profile("p.yaml", "p", Target(model="org/m"), env=env)
    assert runner_of(asked, version, keys) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 4096),
        ({"max_position_embeddings": None}, 2048),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"model_max_length": 8192}, 8192),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 4096),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 2048}, 2048),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"text_config": {**CONFIG, "max_position_embeddings": 512}}, 512),
    ],
)
def test_the_longest_sequence_is_the_one_that_vllm_derives(config: dict[str, Any], expected: int) -> None:
    assert length_of(facts(**config), version="0.33").default == expected


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from([*CONFIG, "factor"]), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [*CONFIG, "rope_scaling", "rope_parameters", "text_config", "n_positions", "num_experts_per_tok",
     "moe_intermediate_size", "n_shared_experts", "model_max_length", "torch_dtype", "quantization_config"]
)  # fmt: skip


ARGUMENTS = st.sampled_from(
    ["max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_memory_bytes", "kv_cache_dtype",
     "block_size", "compilation_config", "cudagraph_capture_sizes", "data_parallel_size", "enable_prefix_caching",
     "async_scheduling", "cpu_offload_gb", "hf_overrides", "enforce_eager"]
)  # fmt: skip
BLOCKS = st.dictionaries(
    st.sampled_from(
        ["num_speculative_tokens_per_batch_size", "draft_sample_method", "kv_cache_dtype", "max_model_len"]
    ),
    JUNK,
)


@given(st.dictionaries(ARGUMENTS, JUNK, max_size=4), BLOCKS, st.sampled_from(["cpu", "1xH100-80GB"]))
def test_arguments_of_any_type_are_weighed_or_left_to_the_rules_about_them(
    engine: dict[str, Any], block: dict[str, Any], machine: str
) -> None:
    small = facts(num_key_value_heads=2, head_dim=16, tie_word_embeddings=False, model_type="llama")
    try:
        found = estimate(
            Profile("p.yaml", "p", Target(model="org/m"), engine=engine),
            target=small,
            draft=small,
            machine=assume(machine),
            version="0.33",
            speculation=Speculation("draft_model", {"num_speculative_tokens": 2, **block}),
        )
    except FactError as error:
        assert error.message
    else:
        assert found.verdict in ("fit", "tight", "does_not_fit")


@given(st.dictionaries(KEYS, JUNK, max_size=4))
def test_a_configuration_of_any_content_gives_sizes_or_a_fact_error(config: dict[str, Any]) -> None:
    for read in (partial(length_of, version=READ[-1]), sizes_of):
        try:
            read(facts(**config))
        except FactError as error:
            assert "config.json" in error.message
