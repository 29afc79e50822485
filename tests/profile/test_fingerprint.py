"""The fingerprint changes with what can change tokens or speed, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import fingerprint

Write = Callable[..., Path]

_TEXT = """\
vllm: ">=0.32,<0.34"
target: {model: org/m, tensor_parallel_size: 4}
speculation: {method: suffix, num_speculative_tokens: 4, suffix_decoding_max_spec_factor: 2.0}
alternatives: {ng: {method: ngram, num_speculative_tokens: 4}}
engine: {max_num_seqs: 64, gpu_memory_utilization: 0.9, nested: {b: 1, a: 2}}
frontend: {reasoning_parser: qwen3}
server: {host: 127.0.0.1, port: 8000, served_model_name: m}
hardware: {accelerator: H100-80GB, count: 4, nodes: 1}
expect: [{workload: chat, min_speedup: 1.3, prompt_tokens: {p50: 800}}]
env: {VLLM_A: "1"}
"""


@pytest.fixture
def of(write: Write) -> Callable[..., str]:
    """The fingerprint of a profile's text."""

    def made(text: str, *settings: str) -> str:
        return fingerprint(load_profile(write(text), settings=settings))

    return made


Of = Callable[..., str]


@pytest.mark.parametrize(
    "setting",
    ["server.host=0.0.0.0", "server.port=0", "server.served_model_name=n", "server.stall_timeout_s=60",
     "server.api_key_env=KEY", "hardware.devices=[2, 3]", "hardware.nodes=2", "name=other", "expect=null",
     "alternatives=null", "schema=1", "engine.gpu_memory_utilization=0.90", "vllm='<0.34, >=0.32'",
     "speculation.suffix_decoding_max_spec_factor=2"],
)  # fmt: skip
def test_placement_names_and_promises_leave_it(of: Of, setting: str) -> None:
    assert of(_TEXT, setting) == of(_TEXT)


@pytest.mark.parametrize(
    "setting",
    ["target.model=org/n", "target.revision=abc", "target.tokenizer=org/t", "target.dtype=float32",
     "target.quantization=fp8", "target.tensor_parallel_size=2", "target.pipeline_parallel_size=2",
     "target.max_model_len=1k", "speculation=null", "speculation.num_speculative_tokens=5",
     "speculation.enforce_eager=true", "speculation={method: ngram, num_speculative_tokens: 4}",
     "engine.max_num_seqs=32", "engine.new=1", "engine.max_num_seqs=null", "engine.nested.a=3",
     "frontend.reasoning_parser=null", "env.VLLM_A=2", "env.VLLM_B=1", "hardware.accelerator=A100-80GB",
     "hardware.count=8", "vllm='==0.33.*'"],
)  # fmt: skip
def test_whatever_can_change_tokens_or_speed_changes_it(of: Of, setting: str) -> None:
    assert of(_TEXT, setting) != of(_TEXT)


def test_an_alternative_in_use_has_a_fingerprint_of_its_own_the_one_of_the_same_block(
    write: Write, of: Of
) -> None:
    profile = load_profile(write(_TEXT))
    chosen = with_alternative(profile, "ng")

    assert fingerprint(chosen) == of(_TEXT, "speculation={method: ngram, num_speculative_tokens: 4}")
    assert fingerprint(with_alternative(profile, "baseline")) == of(_TEXT, "speculation=null")
    assert fingerprint(with_alternative(profile, None)) == of(_TEXT)
