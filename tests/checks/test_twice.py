"""Arguments that are going away, and settings that stand in two places."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile
from specserve.vllm.versions import known_versions, table
from tests.checks.judging import of, places

Load = Callable[[str], Profile]


def test_every_argument_that_a_table_calls_deprecated_is_found_with_vllm_s_own_words(profile: Load) -> None:
    said = {
        (minor, name): argument.deprecated
        for minor in known_versions()
        for name, argument in table(minor).engine.items()
        if argument.deprecated
    }
    assert len(said) >= 5
    for (minor, name), words in said.items():
        (finding,) = of("SD142", profile(f'vllm: "~={minor}.0"\nengine: {{{name}: x}}'))
        assert finding.severity is Severity.WARNING
        assert finding.notes[0] == f"vLLM: {words}"


def test_a_deprecation_of_some_versions_names_them(profile: Load) -> None:
    (finding,) = of("SD142", profile('vllm: ">=0.32"\nengine: {mamba_cache_mode: all}'))
    assert finding.notes[1:] == ("the profile's range allows vLLM 0.32, 0.33; this applies to 0.33",)


@pytest.mark.parametrize(
    "engine",
    [
        "{attention_backend: FLASH_ATTN, attention_config: {backend: TRITON_ATTN}}",
        "{enable_flashinfer_autotune: true, kernel_config: {enable_flashinfer_autotune: true}}",
        "{cudagraph_capture_sizes: [1, 2], compilation_config: {cudagraph_capture_sizes: [1]}}",
        "{max_cudagraph_capture_size: 8, compilation_config: {max_cudagraph_capture_size: 8}}",
    ],
)
def test_what_vllm_calls_mutually_exclusive_is_refused(profile: Load, engine: str) -> None:
    assert len(of("SD143", profile(f"engine: {engine}"))) == 1


@pytest.mark.parametrize(
    "engine",
    [
        "{attention_backend: FLASH_ATTN, attention_config: {flash_attn_version: 3}}",
        "{attention_backend: null, attention_config: {backend: TRITON_ATTN}}",
        "{compilation_config: {cudagraph_capture_sizes: [1]}}",
    ],
)
def test_one_place_is_fine(profile: Load, engine: str) -> None:
    assert of("SD143", profile(f"engine: {engine}")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("engine: {gpu_memory_utilization: 0.9, kv_cache_memory_bytes: 1G}", ["engine.gpu_memory_utilization"]),
        ("engine: {gpu_memory_utilization: 0.9, kv_cache_memory_bytes: null}", []),
        ("engine: {kv_cache_memory_bytes: 1G}\nenv: {VLLM_CPU_KVCACHE_SPACE: 4}", ["engine.kv_cache_memory_bytes"]),
        ("env: {VLLM_CPU_KVCACHE_SPACE: 4}", []),
        ("engine: {moe_backend: triton, kernel_config: {moe_backend: marlin}}", ["engine.kernel_config.moe_backend"]),
        ("engine: {moe_backend: auto, kernel_config: {moe_backend: marlin}}", []),
        ("engine: {moe_backend: triton, kernel_config: {moe_backend: triton}}", []),
        (
            "engine: {reasoning_parser: qwen3, structured_outputs_config: {reasoning_parser: deepseek_r1}}",
            ["engine.structured_outputs_config.reasoning_parser"],
        ),
        (
            "hardware: {devices: [0]}\nenv: {CUDA_VISIBLE_DEVICES: 1}", ["env.CUDA_VISIBLE_DEVICES"],
        ),
        ("hardware: {count: 1}\nenv: {CUDA_VISIBLE_DEVICES: 1}", []),
    ],
)  # fmt: skip
def test_the_setting_that_loses_is_marked(profile: Load, text: str, found: list[str]) -> None:
    assert places("SD144", profile(text)) == found


@pytest.mark.parametrize(
    ("hardware", "severity"),
    [("cpu", Severity.WARNING), ("H100-80GB", Severity.INFO)],
)
def test_a_share_beside_a_fixed_cache_still_checks_the_free_memory_of_a_gpu(
    profile: Load, hardware: str, severity: Severity
) -> None:
    text = f"engine: {{gpu_memory_utilization: 0.4, kv_cache_memory_bytes: 4G}}\nhardware: {{accelerator: {hardware}}}"
    assert [item.severity for item in of("SD144", profile(text))] == [severity]


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("env: {VLLM_PORT: 8000}", 1),
        ("server: {port: 9000}\nenv: {VLLM_PORT: 9000}", 1),
        ("server: {port: 9000}\nenv: {VLLM_PORT: 29500}", 0),
        ("env: {VLLM_HOST_IP: 0.0.0.0}", 1),
        ("env: {VLLM_HOST_IP: 10.0.0.3}", 0),
    ],
)
def test_vllm_s_inner_address_is_not_the_server_s(profile: Load, text: str, hits: int) -> None:
    assert len(of("SD145", profile(text))) == hits
