"""Code that a profile brings into the server: every door is watched, and a plain profile opens none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.profile.schema import Profile
from tests.checks.judging import of, places

Load = Callable[[str], Profile]


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("engine: {worker_cls: my.Worker}", "engine.worker_cls"),
        ("engine: {logits_processors: ['my:Bans']}", "engine.logits_processors"),
        ("engine: {io_processor_plugin: mine}", "engine.io_processor_plugin"),
        ("engine: {distributed_executor_backend: my.Executor}", "engine.distributed_executor_backend"),
        ("engine: {compilation_config: {backend: my.backend}}", "engine.compilation_config.backend"),
        (
            "engine: {kv_transfer_config: {kv_connector_extra_config: {spec_module_path: my.tiers}}}",
            "engine.kv_transfer_config.kv_connector_extra_config.spec_module_path",
        ),
        ("frontend: {middleware: [my.Middleware]}", "frontend.middleware"),
        ("env: {LD_PRELOAD: /opt/lib.so}", "env.LD_PRELOAD"),
        ("env: {VLLM_ALLOW_INSECURE_SERIALIZATION: 1}", "env.VLLM_ALLOW_INSECURE_SERIALIZATION"),
        (
            "alternatives: {own: {method: custom_class, model: my.Proposer, num_speculative_tokens: 2}}",
            "alternatives.own.model",
        ),
    ],
)  # fmt: skip
def test_each_way_to_run_foreign_code_is_found_where_it_stands(profile: Load, line: str, path: str) -> None:
    assert places("SD111", profile(line)) == [path]


@pytest.mark.parametrize(
    "line",
    [
        "engine: {worker_cls: auto, worker_extension_cls: '', distributed_executor_backend: mp}",
        "engine: {distributed_executor_backend: ray, trust_remote_code: false, logits_processors: []}",
        "engine: {compilation_config: {backend: inductor, mode: 3}, io_processor_plugin: null}",
        "engine: {kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both}}",
        "frontend: {tool_call_parser: hermes, middleware: [], tool_parser_plugin: ''}",
        "env: {VLLM_ALLOW_INSECURE_SERIALIZATION: 0, VLLM_PLUGINS: '', PYTHONUNBUFFERED: 1}",
        "speculation: {method: ngram, num_speculative_tokens: 2, prompt_lookup_min: 2, prompt_lookup_max: 4}",
    ],
)
def test_a_profile_that_stays_with_vllm_opens_no_door(profile: Load, line: str) -> None:
    assert of("SD111", profile(line)) == []
