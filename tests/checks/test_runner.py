"""The two model runners: which one serves, and what it refuses, as vLLM's own lines have it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import choice
from specserve.diagnostics import Severity
from specserve.profile.schema import Hardware, Profile, Speculation, Target
from specserve.vllm.facts import V1_LACKS
from specserve.vllm.runner import env_switch
from tests.checks.judging import of, places
from tests.checks.vllmlines import function, minor

Load = Callable[[str], Profile]
METHODS = (
    "draft_model",
    "ngram",
    "ngram_gpu",
    "suffix",
    "eagle",
    "eagle3",
    "mtp",
    "dflash",
    "dspark",
    "custom_class",
)
NEW = 'vllm: ">=0.32"\n'
UNPADDED = "{method: eagle3, model: ./d, num_speculative_tokens: 2, disable_padded_drafter_batch: true}"
OPEN = "{method: draft_model, model: ./d, num_speculative_tokens: 2"
SUFFIX = "speculation: {method: suffix, num_speculative_tokens: 4}"
EAGLE3 = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 4}"


def made(
    method: str = "eagle3", *, env: str | None = None, accelerator: str | None = None, stages: int = 1,
    keys: dict[str, Any] | None = None, **engine: Any,
) -> tuple[Profile, Speculation]:  # fmt: skip
    block = Speculation(method, {"method": method, "num_speculative_tokens": 2, **(keys or {})})
    profile = Profile(
        "p.yaml", "p", Target("org/t", pipeline_parallel_size=stages), speculation=block, engine=engine,
        hardware=Hardware(accelerator) if accelerator else None,
        env={"VLLM_USE_V2_MODEL_RUNNER": env} if env is not None else {},
    )  # fmt: skip
    return profile, block


@pytest.mark.parametrize(
    ("text", "meaning"), [("1", True), ("0", False), ("2", True), ("true", None), ("", None), ("yes", None)]
)
def test_the_switch_is_read_as_vllm_reads_it(text: str, meaning: bool | None) -> None:
    assert env_switch(made(env=text)[0].env) is meaning


def test_a_switch_that_vllm_cannot_read_is_an_error(profile: Load) -> None:
    (finding,) = of("SD122", profile("env: {VLLM_USE_V2_MODEL_RUNNER: true}"))
    assert "must be 0 or 1" in finding.message and finding.severity is Severity.ERROR


@pytest.mark.vllm
@given(
    method=st.sampled_from(METHODS), parallel=st.booleans(), other=st.booleans(), dbo=st.booleans(),
    stages=st.sampled_from((1, 2)), launcher=st.sampled_from((None, "mp", "external_launcher")),
)  # fmt: skip
def test_what_v2_lacks_is_what_vllm_s_own_lines_say(
    method: str, parallel: bool, other: bool, dbo: bool, stages: int, launcher: str | None
) -> None:
    keys = {"parallel_drafting": parallel, "use_heterogeneous_vocab": other}
    engine: dict[str, Any] = {"enable_dbo": dbo, "distributed_executor_backend": launcher}
    profile, block = made(method, env="1", stages=stages, keys=keys, **engine)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, enable_adaptive_verification=False, **keys),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages,
            distributed_executor_backend=launcher,
            use_ubatching=dbo,
            enable_dbo=dbo,
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_elastic_ep=False,
        ),
        model_config=None,
        compilation_config=SimpleNamespace(mode=None, pass_config=SimpleNamespace(enable_sp=False)),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False, mamba_cache_mode="none"),
        ec_transfer_config=None,
        _get_dbo_unsupported_features=lambda: ["dual batch overlap with speculative decoding"],
    )
    mode = SimpleNamespace(STOCK_TORCH_COMPILE="stock")
    lacked = function("config/vllm.py", "_get_v2_model_runner_unsupported_features", CompilationMode=mode)
    unsupported = lacked(config)
    found = choice(profile, block, version=minor())
    assert found is not None and found.runner == "V2"
    assert len(found.lacks) == len(unsupported)


@pytest.mark.vllm
@given(
    method=st.sampled_from(METHODS),
    adaptive=st.booleans(),
    pcp=st.sampled_from((1, 2)),
    sharded=st.booleans(),
)
def test_what_v1_lacks_is_what_vllm_s_own_lines_say(
    method: str, adaptive: bool, pcp: int, sharded: bool
) -> None:
    engine: dict[str, Any] = {"prefill_context_parallel_size": pcp, "enable_batch_sharded_sampling": sharded}
    profile, block = made(method, env="0", keys={"enable_adaptive_verification": adaptive}, **engine)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            method=method,
            enable_adaptive_verification=adaptive,
            draft_lm_head_quantization=None,
            draft_model_config=None,
            is_xpress=lambda: False,
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1, **engine),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        model_config=None,
        _dflash_needs_multi_kv_group=lambda: False,
        _is_dflash_candidate_draft=lambda: False,
        _is_dflash2_draft=lambda: False,
    )
    unsupported = []
    if V1_LACKS.at(minor()):
        unsupported = function("config/vllm.py", "_get_v1_model_runner_unsupported_features")(config)
    found = choice(profile, block, version=minor())
    assert found is not None and found.runner == "V1"
    assert len(found.lacks) == len(unsupported)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{NEW}{SUFFIX}\nenv: {{VLLM_USE_V2_MODEL_RUNNER: 1}}", ["speculation.method"]),
        (f"{NEW}{SUFFIX}", []),
        (
            f"{NEW}speculation: {{method: dspark, model: ./d, num_speculative_tokens: 4}}\n"
            "env: {VLLM_USE_V2_MODEL_RUNNER: 0}",
            ["speculation.method"],
        ),
        (
            f"{NEW}speculation: {{method: dspark, model: ./d, num_speculative_tokens: 4}}\n"
            "hardware: {accelerator: cpu}",
            ["speculation.method"],
        ),
        (f"{NEW}{EAGLE3}\nenv: {{VLLM_USE_V2_MODEL_RUNNER: 0}}", []),
        (
            f"{NEW}{EAGLE3}\nenv: {{VLLM_USE_V2_MODEL_RUNNER: 1}}\nhardware: {{accelerator: cpu}}",
            ["env.VLLM_USE_V2_MODEL_RUNNER"],
        ),
    ],
)
def test_a_runner_that_cannot_is_found_where_the_profile_asks_in_vain(
    profile: Load, text: str, found: list[str]
) -> None:
    assert places("SD122", profile(text)) == found


@pytest.mark.parametrize(
    ("vllm", "block", "env", "hits"),
    [
        ("~=0.33.0", "{method: ngram, num_speculative_tokens: 2}", "", 0),
        ("~=0.33.0", "{method: ngram, num_speculative_tokens: 2}", "{VLLM_USE_V2_MODEL_RUNNER: 0}", 1),
        ("~=0.32.0", "{method: ngram, num_speculative_tokens: 2}", "", 1),
        ("~=0.32.0", "{method: ngram_gpu, num_speculative_tokens: 2}", "", 0),
        ("~=0.32.0", "{method: draft_model, model: ./d, num_speculative_tokens: 2}", "", 0),
        (">=0.32", "{method: suffix}", "", 1),
        ("~=0.32.0", UNPADDED, "", 1),
        ("~=0.33.0", UNPADDED, "", 0),
    ],
)  # fmt: skip
def test_asynchronous_scheduling_is_a_demand_only_where_it_is_written(
    profile: Load, vllm: str, block: str, env: str, hits: int
) -> None:
    text = f'vllm: "{vllm}"\nspeculation: {block}\nenv: {env or "{}"}\nengine: {{async_scheduling: %s}}'
    assert len(of("SD123", profile(text % "true"))) == hits
    assert of("SD123", profile(text % "false")) == of("SD123", profile(text % "null")) == []


def test_pipeline_stages_and_async_scheduling_exclude_each_other_on_v1_alone(profile: Load) -> None:
    text = f"{NEW}target: {{model: ./m, pipeline_parallel_size: 2}}\n{EAGLE3}\nengine: {{async_scheduling: true}}\n"
    assert of("SD123", profile(text)) == []
    (finding,) = of("SD123", profile(text + "env: {VLLM_USE_V2_MODEL_RUNNER: 0}"))
    assert finding.related[0].span.path == "target.pipeline_parallel_size"


@pytest.mark.parametrize(
    ("block", "more", "severity"),
    [
        ("{method: eagle3, model: ./d, num_speculative_tokens: 2", "", Severity.WARNING),
        (OPEN, "", Severity.WARNING),
        (OPEN, "env: {VLLM_USE_V2_MODEL_RUNNER: 0}", Severity.ERROR),
        (OPEN, "hardware: {accelerator: cpu}", Severity.ERROR),
        ("{method: eagle3, model: ./d, num_speculative_tokens: 2, parallel_drafting: true", "", Severity.ERROR),
    ],
)  # fmt: skip
def test_unpadded_batches_end_the_start_only_where_v1_drafts_with_more_slots(
    profile: Load, block: str, more: str, severity: Severity
) -> None:
    text = f"{NEW}speculation: {block}, disable_padded_drafter_batch: true}}\n{more}"
    assert [finding.severity for finding in of("SD124", profile(text))] == [severity]


@pytest.mark.parametrize(
    ("text", "hits"),
    [(f"{NEW}{SUFFIX}", 1), (f"{NEW}{EAGLE3}", 0), (f"{NEW}{EAGLE3}\nhardware: {{accelerator: cpu}}", 1)],
)
def test_logits_processors_are_refused_by_v1_alone(profile: Load, text: str, hits: int) -> None:
    assert len(of("SD125", profile(f"{text}\nengine: {{logits_processors: ['a:B']}}"))) == hits
    assert of("SD125", profile(text)) == []


@pytest.mark.parametrize(
    ("more", "hits"),
    [
        ("expect: [{concurrency: 1, min_speedup: 1.5}]", 1),
        ("expect: [{concurrency: 1, max_tpot_p99_ms: 30}]", 1),
        ("expect: [{concurrency: 1, min_mean_acceptance_length: 2}]", 0),
        ("", 0),
        ("expect: [{concurrency: 1, min_speedup: 1.5}]\nengine: {enforce_eager: true}", 0),
        ("expect: [{concurrency: 1, min_speedup: 1.5}]\nhardware: {accelerator: cpu}", 0),
    ],
)
def test_an_eager_draft_is_worth_knowing_where_speed_is_promised(profile: Load, more: str, hits: int) -> None:
    text = f"{NEW}speculation: {{method: draft_model, model: ./d, num_speculative_tokens: 2}}\n{more}"
    assert len(of("SD126", profile(text))) == hits


@pytest.mark.parametrize(
    ("version", "keys", "rest", "hits"),
    [
        ("0.29", "method: mtp, moe_backend: triton", "engine: {moe_backend: marlin}", 1),
        ("0.29", "method: mtp, moe_backend: marlin", "engine: {moe_backend: marlin}", 0),
        ("0.30", "method: mtp, moe_backend: triton", "engine: {moe_backend: marlin}", 0),
        ("0.29", "method: eagle3, model: ./h, attention_backend: FLASH_ATTN", "", 1),
        ("0.29", "method: dflash, model: ./h, attention_backend: FLASH_ATTN", "", 0),
        ("0.33", "method: mtp, enforce_eager: true", "", 1),
        ("0.33", "method: mtp, enforce_eager: false", "", 0),
        ("0.33", "method: mtp, enforce_eager: true", "engine: {enforce_eager: true}", 0),
        ("0.33", "method: dflash, model: ./h, enforce_eager: true", "", 1),
        ("0.33", "method: mtp, enforce_eager: true", 'env: {VLLM_USE_V2_MODEL_RUNNER: "0"}', 0),
    ],
)
def test_a_key_of_the_draft_that_v2_does_not_read_is_named(
    profile: Load, version: str, keys: str, rest: str, hits: int
) -> None:
    text = f'vllm: "=={version}.*"\nspeculation: {{{keys}, num_speculative_tokens: 3}}\n{rest}'
    assert len(of("SD170", profile(text))) == hits
