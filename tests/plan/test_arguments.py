"""One argument of vLLM on the command line and as a keyword: what is said, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.prepare import prepare
from specserve.plan.arguments import ELSEWHERE, keyword_value, problems, tokens
from specserve.plan.launch import LaunchOptions
from specserve.profile.schema import Profile
from specserve.vllm import versions
from specserve.vllm.arguments import Argument
from specserve.vllm.versions import known_versions, table
from tests.conftest import Ask

Load = Callable[[str], Profile]
ROOT = Path(__file__).parents[2]
NEW = table("0.33")
ENGINE = table("0.32").engine
OPTIONAL = Argument("x", "--x", "str", "optional_value")


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        (ENGINE["max_num_seqs"], 64, ["--max-num-seqs", "64"]),
        (ENGINE["seed"], -1, ["--seed=-1"]),
        (ENGINE["max_num_batched_tokens"], "8K", ["--max-num-batched-tokens", "8192"]),
        (ENGINE["enforce_eager"], True, ["--enforce-eager"]),
        (ENGINE["enable_prefix_caching"], False, ["--no-enable-prefix-caching"]),
        (ENGINE["quantization"], "None", ["--quantization", "None"]),
        (ENGINE["quantization"], None, []),
        (ENGINE["hf_overrides"], {"a": [-2], "b": None}, ["--hf-overrides", '{"a": [-2], "b": null}']),
        (ENGINE["served_model_name"], ["a", "b"], ["--served-model-name", "a", "b"]),
        (ENGINE["served_model_name"], ["-a"], ["--served-model-name=-a"]),
        (Argument("x", "--x", "list", "append"), ["a", "-b"], ["--x", "a", "--x=-b"]),
        (Argument("x", "--x", "list", "comma"), ["a", "b"], ["--x", "a,b"]),
        (Argument("x", "--x", "list", "json"), [], ["--x", "[]"]),
        (Argument("x", None, "int"), 3, []),
        (OPTIONAL, True, ["--x"]),
        (OPTIONAL, "v", ["--x", "v"]),
    ],
)
def test_a_value_stands_on_the_command_line_as_vllm_reads_it(
    argument: Argument, value: Any, words: list[str]
) -> None:
    assert tokens(argument, value) == words


@pytest.mark.parametrize(
    ("line", "kind", "message", "help_text"),
    [
        ("engine: {max-num-seqs: 6}", "unknown", "no engine argument `max-num-seqs`", "mean `max_num_seqs`?"),
        ("engine: {chat_template: x}", "unknown", "`chat_template`", "write it under `frontend`"),
        ("frontend: {max_num_seqs: 3}", "unknown", "no frontend argument", "write it under `engine`"),
        ("engine: {tensor_paralel_size: 2}", "unknown", "", "did you mean `target.tensor_parallel_size`?"),
        ("engine: {config: a.yaml}", "refused", "`config` is refused", ""),
        ("engine: {hf_token: abc}", "refused", "`hf_token` is refused", ""),
        ("engine: {max_num_seqs: many}", "value", "must be an integer; found `many`", ""),
        ("engine: {max_num_seqs: 0}", "value", "must be", ""),
        ("engine: {max_lora_rank: 7}", "value", "", ""),
        ('engine: {gpu_memory_utilization: "0.9"}', "value", "a number; found `0.9`", "without quotes"),
        ("engine: {gpu_memory_utilization: 90}", "value", "", ""),
        ("engine: {convert: embbed}", "value", "`convert` cannot be `embbed`", "did you mean `embed`?"),
        ("engine: {attention_backend: XFORMERS}", "value", "", ""),
        ("engine: {compilation_config: {level: 3}}", "unknown", "`level`", ""),
        ("engine: {compilation_config: {pass_config: {x: 1}}}", "unknown", "`x`", ""),
        ("engine: {reasoning_parser: nope}", "plug-in", "", ""),
        ("engine: {load_format: foo}", "plug-in", "", ""),
        ("frontend: {tool_call_parser: nope}", "plug-in", "", ""),
        ('frontend: {lora_modules: ["a=b", "--help=p"]}', "value", "may begin with a dash", ""),
        ("target: {model: org/m, dtype: fp16}", "value", "", ""),
        ("target: {model: org/m, quantization: awqq}", "plug-in", "", ""),
        ("alternatives: {a: {method: mtp, attention_backend: X}}", "value", "", ""),
    ],
)
def test_what_vllm_would_refuse_is_said_with_the_way_out(
    profile: Load, line: str, kind: str, message: str, help_text: str
) -> None:
    (problem,) = problems(profile(line), NEW)
    assert (problem.kind, problem.path.partition(".")[0]) == (kind, line.partition(":")[0])
    assert message in problem.message
    assert help_text in (problem.help or "")


@pytest.mark.parametrize(
    "line",
    [
        "engine: {gpu_memory_utilization: 1, max_num_seqs: 1, max_lora_rank: 64, max_logprobs: -1}",
        "engine: {attention_backend: flash_attn, kv_cache_dtype: fp8}",
        "engine: {compilation_config: {mode: 3, cudagraph_mode: PIECEWISE, pass_config: {fuse_norm_quant: true}}}",
        "engine: {compilation_config: {cudagraph_mode: full_decode_only}, kernel_config: {moe_backend: deep-gemm}}",
        "engine: {attention_config: {backend: auto}, structured_outputs_config: {backend: xgrammar}}",
        "engine: {kv_transfer_config: {kv_connector: X, kv_role: kv_both, kv_connector_extra_config: {a: 1}}}",
        "engine: {reasoning_parser: mine, reasoning_parser_plugin: ./mine.py}",
        "frontend: {tool_call_parser: mine, tool_parser_plugin: ./mine.py}",
    ],
)
@pytest.mark.parametrize("version", known_versions())
def test_what_vllm_admits_is_left_alone(profile: Load, version: str, line: str) -> None:
    assert [item.message for item in problems(profile(line), table(version))] == []


def test_each_argument_with_a_place_of_its_own_is_sent_there(profile: Load) -> None:
    for name, place in ELSEWHERE.items():
        if name in NEW.engine or name in NEW.frontend:
            section = "frontend" if name in NEW.frontend else "engine"
            found = list(problems(profile(f"{section}: {{{name}: 1}}"), NEW))
            assert [item.help for item in found] == [f"write it as `{place}`"], name


EVERYTHING = """
target: {model: org/target, max_model_len: auto, tensor_parallel_size: 2, quantization: "None"}
speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}
engine:
  seed: -1
  max_num_batched_tokens: 8K
  gpu_memory_utilization: 0.5
  enforce_eager: true
  enable_prefix_caching: false
  cudagraph_capture_sizes: [1, 2, 4]
  hf_overrides: {rope: {factor: -0.5}, "quo'te\\"": ["ü", null, true]}
  override_generation_config: {temperature: -0.5}
  limit_mm_per_prompt: {image: 2}
  tokenizer_mode: slow
  async_scheduling: false
  load_format: "None"
  kv_cache_memory_bytes: 1G
frontend:
  allowed_origins: ["http://a", "http://b"]
  enable_auto_tool_choice: true
  tool_call_parser: hermes
  chat_template: "line\\nnext 'quoted' $HOME ü"
  root_path: -dash
  middleware: [a.b, c.d]
  uvicorn_log_level: warning
server: {served_model_name: nice, host: "::1", port: 9}
"""


@pytest.mark.vllm
@pytest.mark.installed
def test_the_parser_of_the_installed_vllm_reads_back_what_each_plan_says(
    write: Callable[..., Path], ask_vllm: Ask
) -> None:
    found = versions.installed()
    assert found is not None
    known = table(found.version)
    files = [file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_")]
    names = [str(file) for file in [*files, write(EVERYTHING)]]
    made = [prepare(name, LaunchOptions(vllm=known.minor, starts=False)) for name in names]
    answers = ask_vllm([plan.argv[2:] for _, plan in made])
    for (loaded, plan), answer in zip(made, answers, strict=True):
        read = answer["arguments"]
        assert read.pop("model_tag") == plan.engine_kwargs["model"]
        said = {name: value for name, value in plan.engine_kwargs.items() if name != "model"}
        for section, values in ((known.engine, loaded.engine), (known.frontend, loaded.frontend)):
            said |= {name: keyword_value(section[name], value) for name, value in values.items()}
        assert {name: read[name] for name in said} == said
        assert (read["host"], read["port"], read["shutdown_timeout"]) == (plan.host, plan.port, 25)
