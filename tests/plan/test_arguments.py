"""One argument of vLLM on the command line and as a keyword: what is said, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
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
from specserve.vllm.versions import table

Load = Callable[[str], Profile]
ROOT = Path(__file__).parents[2]
NEW = table("0.33")
ENGINE = table("0.32").engine


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_num_seqs", 64, ["--max-num-seqs", "64"]),
        ("seed", -1, ["--seed=-1"]),
        ("max_num_batched_tokens", "8K", ["--max-num-batched-tokens", "8192"]),
        ("enforce_eager", True, ["--enforce-eager"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("quantization", "None", ["--quantization", "None"]),
        ("quantization", None, []),
        ("hf_overrides", {"a": [1, -2], "b": None}, ["--hf-overrides", '{"a": [1, -2], "b": null}']),
        ("served_model_name", ["a", "b"], ["--served-model-name", "a", "b"]),
        ("served_model_name", "a", ["--served-model-name", "a"]),
        ("served_model_name", ["-a"], ["--served-model-name=-a"]),
    ],
)
def test_a_value_stands_on_the_command_line_as_vllm_reads_it(name: str, value: Any, words: list[str]) -> None:
    assert tokens(ENGINE[name], value) == words


def test_the_other_forms_of_an_argument_are_spoken_too() -> None:
    assert tokens(Argument("x", "--x", "list", "append"), ["a", "-b"]) == ["--x", "a", "--x=-b"]
    assert tokens(Argument("x", "--x", "list", "comma"), ["a", "b"]) == ["--x", "a,b"]
    assert tokens(Argument("x", "--x", "str", "optional_value"), True) == ["--x"]
    assert tokens(Argument("x", "--x", "str", "optional_value"), "v") == ["--x", "v"]
    assert tokens(Argument("x", "--x", "list", "json"), []) == ["--x", "[]"]
    assert tokens(Argument("x", None, "int"), 3) == []
    assert keyword_value(ENGINE["quantization"], "None") is None


@pytest.mark.parametrize(
    ("line", "message", "help_text"),
    [
        ("engine: {max_num_sequences: 6}", "no engine argument `max_num_sequences`", "did you mean `max_num_seqs`?"),
        ("engine: {max-num-seqs: 6}", "no engine argument `max-num-seqs`", "did you mean `max_num_seqs`?"),
        ('frontend: {lora_modules: ["a=b", "--help=p"]}', "may begin with a dash", None),
        ("engine: {no_enable_prefix_caching: true}", "`no_enable_prefix_caching`", "mean `enable_prefix_caching`?"),
        ("engine: {chat_template: x}", "no engine argument `chat_template`", "write it under `frontend`"),
        ("frontend: {max_num_seqs: 3}", "no frontend argument `max_num_seqs`", "write it under `engine`"),
        ("engine: {tensor_paralel_size: 2}", "`tensor_paralel_size`", "did you mean `target.tensor_parallel_size`?"),
        ("engine: {config: a.yaml}", "`config` is refused", None),
        ("engine: {hf_token: abc}", "`hf_token` is refused", None),
        ("engine: {max_num_seqs: many}", "must be an integer; found `many`", None),
        ('engine: {gpu_memory_utilization: "0.9"}', "must be a number; found `0.9`", "without quotes"),
        ("engine: {convert: embbed}", "`convert` cannot be `embbed`", "did you mean `embed`?"),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_said_with_the_way_out(
    profile: Load, line: str, message: str, help_text: str | None
) -> None:
    (problem,) = problems(profile(line), NEW)
    assert message in problem.message
    assert (help_text or "") in (problem.help or "")
    assert problem.path.startswith(line.partition(":")[0])


def test_an_alternative_is_judged_like_the_main_variant(profile: Load) -> None:
    loaded = profile(
        "alternatives: {a: {method: dflash, model: org/d, num_speculative_tokens: 2, xpress_topc: 2}}"
    )
    assert [item.path for item in problems(loaded, table("0.32"))] == ["alternatives.a.xpress_topc"]


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
def test_the_parser_of_the_installed_vllm_reads_back_what_each_plan_says(write: Callable[..., Path]) -> None:
    found = versions.installed()
    assert found is not None
    known = table(found.version)
    files = [file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_")]
    names = [str(file) for file in [*files, write(EVERYTHING)]]
    made = [prepare(name, LaunchOptions(vllm=known.minor, starts=False)) for name in names]
    lines = [json.dumps({"id": at, "argv": plan.argv[2:]}) for at, (_, plan) in enumerate(made)]
    child = subprocess.run(
        [sys.executable, "-m", "tests.parser_child"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    for (loaded, plan), line in zip(made, child.stdout.splitlines(), strict=True):
        read = json.loads(line)["arguments"]
        assert read.pop("model_tag") == plan.engine_kwargs["model"]
        said = {name: value for name, value in plan.engine_kwargs.items() if name != "model"}
        for section, values in ((known.engine, loaded.engine), (known.frontend, loaded.frontend)):
            said |= {name: keyword_value(section[name], value) for name, value in values.items()}
        assert {name: read[name] for name in said} == said
        assert (read["host"], read["port"], read["shutdown_timeout"]) == (plan.host, plan.port, 25)
