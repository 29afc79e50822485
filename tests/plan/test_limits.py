"""What vLLM's tables say of values, keys and names: judged in a profile, and as the installed vLLM has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from specserve.plan.arguments import problems
from specserve.profile.schema import Profile
from specserve.vllm.versions import installed, known_versions, table

Load = Callable[[str], Profile]
REFUSED = [
    ("engine: {gpu_memory_utilization: 90}", "engine.gpu_memory_utilization", "value"),
    ("engine: {max_num_seqs: 0}", "engine.max_num_seqs", "value"),
    ("engine: {max_lora_rank: 7}", "engine.max_lora_rank", "value"),
    ("engine: {attention_backend: XFORMERS}", "engine.attention_backend", "value"),
    ("engine: {compilation_config: {level: 3}}", "engine.compilation_config.level", "unknown"),
    (
        "engine: {compilation_config: {pass_config: {x: 1}}}",
        "engine.compilation_config.pass_config.x",
        "unknown",
    ),
    ("engine: {reasoning_parser: nope}", "engine.reasoning_parser", "plug-in"),
    ("frontend: {tool_call_parser: nope}", "frontend.tool_call_parser", "plug-in"),
    ("engine: {load_format: foo}", "engine.load_format", "plug-in"),
]
ADMITTED = [
    "engine: {gpu_memory_utilization: 1, max_num_seqs: 1, max_lora_rank: 64, max_logprobs: -1}",
    "engine: {attention_backend: flash_attn, kv_cache_dtype: fp8}",
    "engine: {compilation_config: {mode: 3, cudagraph_mode: PIECEWISE, pass_config: {fuse_norm_quant: true}}}",
    "engine: {compilation_config: {cudagraph_mode: full_decode_only}, kernel_config: {moe_backend: deep-gemm}}",
    "engine: {attention_config: {backend: auto}, structured_outputs_config: {backend: xgrammar}}",
    "engine: {kv_transfer_config: {kv_connector: X, kv_role: kv_both, kv_connector_extra_config: {a: 1}}}",
    "engine: {reasoning_parser: mine, reasoning_parser_plugin: ./mine.py}",
    "frontend: {tool_call_parser: mine, tool_parser_plugin: ./mine.py}",
]


@pytest.mark.parametrize(("line", "path", "kind"), REFUSED)
def test_what_vllm_refuses_in_a_value_is_named_at_its_place(
    profile: Load, line: str, path: str, kind: str
) -> None:
    found = [(item.path, item.kind) for item in problems(profile(line), table("0.32"))]
    assert found == [(path, kind)]


@pytest.mark.parametrize("line", ADMITTED)
@pytest.mark.parametrize("version", known_versions())
def test_what_vllm_admits_is_left_alone(profile: Load, version: str, line: str) -> None:
    assert [item.message for item in problems(profile(line), table(version))] == []


@pytest.mark.parametrize(
    ("line", "path", "kind"),
    [("{dtype: fp16}", "target.dtype", "value"), ("{quantization: awqq}", "target.quantization", "plug-in")],
)
def test_type_and_quantization_of_the_target_are_judged_too(
    profile: Load, line: str, path: str, kind: str
) -> None:
    loaded = profile(f"target: {{model: org/m, {line[1:]}")
    assert [(item.path, item.kind) for item in problems(loaded, table("0.32"))] == [(path, kind)]


CHILD = """
import dataclasses, json, sys, typing
from vllm.engine.arg_utils import EngineArgs
import vllm.config
def keys(cls):
    return sorted(field.name for field in dataclasses.fields(cls) if not field.name.startswith("_"))
hints = {f.name: f.type for f in dataclasses.fields(EngineArgs)}
answer = {}
for name in json.load(sys.stdin):
    cls = next((item for item in [hints[name], *typing.get_args(hints[name])] if dataclasses.is_dataclass(item)), None)
    answer[name] = keys(cls) if cls else None
print("\\n" + json.dumps(answer))
"""


@pytest.mark.vllm
def test_the_keys_are_those_of_the_installed_vllm_s_classes() -> None:
    found = installed()
    assert found is not None
    ours = {
        name: [key for key in argument.keys if "." not in key]
        for name, argument in table(found.version).engine.items()
        if argument.keys
    }
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(list(ours)), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]
    assert json.loads(child.stdout.splitlines()[-1]) == ours and len(ours) >= 10
