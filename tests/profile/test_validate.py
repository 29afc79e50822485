"""A tree to a profile: each key takes what means its type, and every problem is told once, at its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import Span
from specserve.profile.load import examine, load_profile
from specserve.profile.validate import EVERY_KEY, name_of
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import known_versions, table

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


_ALL = " or ".join(", ".join(f"`{method}`" for method in METHODS).rsplit(", ", 1))
_BAD = """\
schema: 1
nmae: demo
vllm: newest
target:
  model: org/model
  tensor_parallel_size: "4"
  dtype: false
speculation:
  method: eagle3
  modle: org/head
  num_speculative_tokens: 010
engine:
  max_num_seqs: 64
  max_num_seqs: 32
  seed: [1, .nan]
server: {host: , port: 70000}
expect:
  - {workload: chat, concurency: 16}
env: {1X: a}
"""


def test_all_problems_of_a_file_come_in_one_run_in_file_order(problems: Problems) -> None:
    assert [line.partition(" ")[0] + line.partition("`")[1] + line.split("`")[1] for line in problems(_BAD)] == [
        "2:1`nmae", "3:7`vllm", "6:25`target.tensor_parallel_size", "7:10`target.dtype", "10:3`modle",
        "11:27`speculation.num_speculative_tokens", "14:3`max_num_seqs", "15:13`engine.seed[1]", "16:24`server.port",
        "18:22`concurency", "19:7`env",
    ]  # fmt: skip


def test_every_value_knows_where_it_was_written(write: Write) -> None:
    profile = load_profile(
        write("target:\n  model: x\nexpect:\n  - {workload: chat}\nengine: {a: {b: [1, 22]}}\n")
    )

    assert profile.span("target.model") == Span("demo.yaml", 2, 10, 2, 11, "target.model")
    assert str(profile.span("expect[0].workload")) == "demo.yaml:4:16"
    assert str(profile.span("engine.a.b[1]")) == "demo.yaml:5:21"


def test_the_place_of_a_default_is_the_section_around_it_or_the_file(write: Write) -> None:
    profile = load_profile(write("\ntarget: {model: x}\n"))

    assert str(profile.span("target.dtype")) == "demo.yaml:2:9"
    assert str(profile.span("server.port")) == "demo.yaml:1:1"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("llama70b-8b.yaml", "llama70b-8b"), ("Llama 3.1 (70B).yml", "llama-3-1-70b"), ("_base.yaml", "base"),
        ("a/b/c.d.yaml", "c-d"), ("-", "stdin"), ("日本.yaml", "profile"), ("x", "x"), ("__a__b__", "a-b"),
    ],
)  # fmt: skip
def test_the_name_is_the_stem_in_lower_case_with_dashes(file: str, name: str) -> None:
    assert name_of(file) == name


@pytest.mark.parametrize("name", ["My_Model", "a--b", "-a", "ä", "a b"])
def test_another_name_is_refused(problems: Problems, name: str) -> None:
    assert problems(f"target: {{model: x}}\nname: {name}\n") == [
        f"2:7 SD006 `name` must be lower-case letters, digits and single dashes; found `{name}`"
    ]


@pytest.mark.parametrize("text", ["0.32", "latest", "'>=0.32 <0.34'", "'>='", "^0.32"])
def test_anything_else_is_no_range_of_versions(problems: Problems, text: str) -> None:
    (told,) = problems(f"target: {{model: x}}\nvllm: {text}\n")
    assert told.startswith("2:7 SD006 `vllm` must be a range of versions such as `>=0.32,<0.34`; found ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("targt: {model: x}", "1:1 SD005 unknown key `targt` in a profile | did you mean `target`?"),
        ("target: {model: x, Tensor-parallel-size: 2}",
         "1:20 SD005 unknown key `Tensor-parallel-size` in `target` | did you mean `tensor_parallel_size`?"),
        ("target: {model: x, gpu_memory_utilization: 0.9}",
         "1:20 SD005 unknown key `gpu_memory_utilization` in `target`"
         " | `engine` takes every other engine argument of vLLM"),
        ("target: {model: x}\nmax_model_len: 10",
         "2:1 SD005 unknown key `max_model_len` in a profile | write it as `target.max_model_len`"),
        ("target: {model: x}\nserver: {zzz: 1}", "2:10 SD005 unknown key `zzz` in `server`"),
        ("target: {model: x}\nexpect: [{min_speed: 1}]",
         "2:11 SD005 unknown key `min_speed` in `expect[0]` | did you mean `min_speedup`?"),
        ("engine: {}", "1:1 SD007 `target` is missing | The model whose output is wanted."),
        ("# base\nname: x\ntarget:", "3:8 SD006 `target` must be a mapping; found nothing"),
        ("target: {dtype: auto}",
         "1:1 SD007 `target.model` is missing | Hub id, or a path from the folder of the profile."),
        ("target: {model: ''}", "1:17 SD006 `target.model` must be a name or a path; found the text ``"),
        ("target: {model: --port}", "1:17 SD006 `target.model` must be a name or a path; found `--port`"),
        ("target: x", "1:9 SD006 `target` must be a mapping; found `x`"),
        ("target: {model: x}\nengine: {max_model_len: 1k}",
         "2:10 SD005 `max_model_len` does not belong in `engine` | write it as `target.max_model_len`"),
        ("target: {model: x}\nengine: {tensor-parallel-size: 2}",
         "2:10 SD005 `tensor-parallel-size` does not belong in `engine` | write it as `target.tensor_parallel_size`"),
        ("target: {model: x}\nengine: {speculative_config: {method: ngram}}",
         "2:10 SD005 `speculative_config` does not belong in `engine` | write it as `speculation`"),
        ("target: {model: x}\nfrontend: {port: 1}",
         "2:12 SD005 `port` does not belong in `frontend` | write it as `server.port`"),
        ("target: {model: x}\nfrontend: {api_key: hush}",
         "2:12 SD005 `api_key` does not belong in `frontend` | write it as `server.api_key_env`"),
        ("target: {model: x}\nspeculation: {model: x}",
         "2:1 SD007 `speculation.method` is missing | The speculation method, such as `draft_model` or `ngram`."),
        ("target: {model: x}\nspeculation: {method: }",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found nothing"),
        ("target: {model: x}\nspeculation: {methud: ngram}",
         "2:15 SD005 unknown key `methud` in `speculation` | did you mean `method`?"),
        ("target: {model: x}\nspeculation: {method: EAGLE_3}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `EAGLE_3` | did you mean `eagle3`?"),
        ("target: {model: x}\nspeculation: {method: deepseek_mtp, num_speculative_tokens: 1}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `deepseek_mtp` | did you mean `mtp`?"),
        ("target: {model: x}\nspeculation: {method: medusa, model: x}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `medusa` | vLLM 0.33 removed it; heads for"
         " `eagle3` or `mtp` took its place"),
        ("target: {model: x}\nspeculation: {method: ngram, num_speculative_tokens: 4, model: x}",
         "2:57 SD005 unknown key `model` in `speculation` (method `ngram`)"
            " | leave it out: it has no effect with this method"),
        ("target: {model: x}\nspeculation: {method: eagle3, model: x, use_heterogeneous_vocab: true}",
         "2:41 SD005 unknown key `use_heterogeneous_vocab` in `speculation` (method `eagle3`)"
            " | leave it out: it has no effect with this method"),
        ("target: {model: x}\nspeculation: {method: eagle3, model: x, tensor_parallel_size: 2}",
         "2:41 SD005 unknown key `tensor_parallel_size` in `speculation` (method `eagle3`)"
         " | did you mean `draft_tensor_parallel_size`?"),
        ("target: {model: x}\nspeculation: {method: ngram, num_spec_tokens: 4}",
         "2:30 SD005 unknown key `num_spec_tokens` in `speculation` (method `ngram`)"
         " | did you mean `num_speculative_tokens`?"),
        ("target: {model: x}\nspeculation: {method: eagle3, model: x, draft_sample_method: gredy}",
         "2:62 SD006 `speculation.draft_sample_method` must be `greedy` or `probabilistic`; found `gredy`"),
        ("target: {model: x}\nspeculation: {method: eagle3, model: x, num_speculative_tokens: 0}",
         "2:65 SD006 `speculation.num_speculative_tokens` must be an integer of at least 1; found `0`"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_problem_with_the_likely_cure(problems: Problems, text: str, told: str) -> None:
    assert problems(f"{text}\n") == [told]


@pytest.mark.parametrize(
    "section",
    ["speculation", "alternatives", "engine", "frontend", "server", "hardware", "expect", "env", "name",
     "vllm", "extends", "schema"],
)  # fmt: skip
def test_an_empty_section_is_as_good_as_none(write: Write, section: str) -> None:
    empty = load_profile(write(f"target: {{model: x}}\n{section}:\n"))

    assert empty == load_profile(write("target: {model: x}\n"))


def test_the_environment_is_text_as_it_was_written(write: Write) -> None:
    profile = load_profile(
        write(
            "target: {model: x}\nenv: {A: 010, B: yes, C: 1e3, D: true, E: '', F: 12:30:45, G: null, H: 'q'}\n"
        )
    )

    assert profile.env == {
        "A": "010", "B": "yes", "C": "1e3", "D": "true", "E": "", "F": "12:30:45", "H": "q",
    }  # fmt: skip


def test_the_environment_has_names_and_texts_only(problems: Problems) -> None:
    assert problems('target: {model: x}\nenv: {1X: a, A: [1], B: {C: d}, "D=": e}\n') == [
        "2:7 SD006 a name in `env` must be letters, digits and `_`; found `1X`",
        "2:17 SD006 `env.A` must be a text; found a list",
        "2:25 SD006 `env.B` must be a text; found a mapping",
        "2:33 SD006 a name in `env` must be letters, digits and `_`; found `D=`",
    ]


@pytest.mark.parametrize("key", ["sk-proj-12345", "hf_x y", "Bearer token"])
def test_a_key_in_the_place_of_its_variable_is_refused_and_never_repeated(
    problems: Problems, key: str
) -> None:
    (told,) = problems(f"target: {{model: x}}\nserver: {{api_key_env: {key}}}\n")

    assert told == (
        "2:23 SD006 `server.api_key_env` must be the name of an environment variable, and never the key itself"
    )


def _text(path: str, text: str) -> str:
    """A profile with one value more."""
    section, _, key = path.partition(".")
    target = f", {key}: {text}" if section == "target" else ""
    return f"target: {{model: x{target}}}\n" + (f"{section}: {{{key}: {text}}}\n" if not target else "")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("target.revision", "plain", "plain"), ("target.revision", "'true'", "true"),
        ("target.revision", "0123456", "0123456"), ("target.revision", "1e10", "1e10"),
        ("target.revision", f"{'1234' * 9}78ab", f"{'1234' * 9}78ab"), ("target.revision", "1" * 40, "1" * 40),
        ("target.revision", "12:30:45", "12:30:45"), ("target.revision", "2024-01-01", "2024-01-01"),
        ("hardware.count", "12", 12), ("hardware.count", "1_000", 1000), ("hardware.count", "'4k'", 4000),
        ("hardware.count", "1.5k", 1500), ("hardware.count", "2T", 2 << 40), ("server.port", "", 8000),
        ("target.max_model_len", "32k", 32_000), ("target.max_model_len", "32K", 32_768),
        ("target.max_model_len", "Auto", -1), ("target.max_model_len", "-1", -1),
        ("server.stall_timeout_s", "1e3", 1000.0), ("server.stall_timeout_s", "2", 2.0),
        ("engine.a", "yes", True), ("engine.a", "off", False), ("engine.a", "010", "010"),
        ("engine.a", "[1, a, 1e-3, null]", (1, "a", 0.001, None)),
        ("engine.a", "{1: a, null: b}", {"1": "a", "null": "b"}),
        ("hardware.devices", "[3, GPU-8d5e]", (3, "GPU-8d5e")),
    ],
)  # fmt: skip
def test_it_is_read_as_it_is_meant(write: Write, path: str, text: str, value: Any) -> None:
    profile = load_profile(write(_text(path, text)))
    section, _, key = path.partition(".")
    found = profile.engine[key] if section == "engine" else getattr(getattr(profile, section), key)

    assert (found, type(found) is type(value) or isinstance(value, dict)) == (value, True)


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("target.dtype", "true", "must be a text; found `true`"),
        ("target.dtype", "[a]", "must be a text; found a list"),
        ("target.dtype", "''", "must be a text; found the text ``"),
        ("target.dtype", '"a\\e[31m"', "must be a text; found the text `a\\x1b[31m`"),
        ("engine.a", '"a\\x9bm"',
         "must be a finite number, or a text without control characters; found the text `a\\x9bm`"),
        ("engine.a", ".nan", "must be a finite number, or a text without control characters; found `.nan`"),
        ("hardware.count", "many", "must be an integer of at least 1; found `many`"),
        ("hardware.count", "1.5K", "must be an integer of at least 1; found `1.5K`"),
        ("hardware.count", "true", "must be an integer of at least 1; found `true`"),
        ("hardware.count", "010", "must be an integer of at least 1; found `010`"),
        ("hardware.count", "'4'", "must be an integer of at least 1; found the text `4`"),
        ("server.port", "70k", "must be an integer from 0 to 65535; found `70k`"),
        ("target.max_model_len", "0", "must be `auto` or a number of at least 1; found `0`"),
        ("target.max_model_len", "-3", "must be `auto` or a number of at least 1; found `-3`"),
        ("server.stall_timeout_s", ".inf", "must be a number of at least 1; found `.inf`"),
        ("server.stall_timeout_s", "1e999", "must be a number of at least 1; found `1e999`"),
        ("server.host", "a b", "must be a host name or an address, such as `0.0.0.0` or `::1`; found `a b`"),
        ("hardware.devices", "3", "must be a list, each item an index or a UUID; found `3`"),
    ],
)  # fmt: skip
def test_anything_else_is_told_in_one_sentence(problems: Problems, path: str, text: str, told: str) -> None:
    (line,) = problems(_text(path, text))
    assert line.partition(" SD006 ")[2] == f"`{path}` {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {b: [1, {c: .nan}]}", ["engine.b[1].c"]),
        ("hardware: {devices: [0, -1, null, [1]]}", [f"hardware.devices[{at}]" for at in (1, 2, 3)]),
        ("speculation: {method: suffix, num_speculative_tokens_per_batch_size: [[1, 2], [1, x, -3], 7]}",
         [f"speculation.num_speculative_tokens_per_batch_size[{at}]" for at in ("0", "1][1", "1][2", "2")]),
        ("expect: [{prompt_tokens: {p50: x, p99: -1}}, null]",
         ["expect[0].prompt_tokens.p50", "expect[0].prompt_tokens.p99", "expect[1]"]),
    ],
)  # fmt: skip
def test_every_wrong_item_of_a_collection_is_told_at_its_own_place(
    problems: Problems, text: str, told: list[str]
) -> None:
    lines = problems(f"target: {{model: x}}\n{text}\n")
    assert [line.partition("`")[2].partition("`")[0] for line in lines] == told
    assert len({line.partition(" ")[0] for line in lines}) == len(lines)


def test_a_block_keeps_every_key_that_has_a_value(write: Write) -> None:
    block = "{method: eagle3, model: org/head, num_speculative_tokens: 3, revision: null, quantization: fp8}"
    speculation = load_profile(write(f"target: {{model: x}}\nspeculation: {block}\n")).speculation

    assert speculation is not None
    assert (speculation.method, speculation.model, speculation.num_speculative_tokens) == (
        "eagle3", "org/head", 3,
    )  # fmt: skip
    assert dict(speculation.keys) == {
        "method": "eagle3", "model": "org/head", "num_speculative_tokens": 3, "quantization": "fp8",
    }  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_what_it_needs(problems: Problems, method: str) -> None:
    told = problems(f"target: {{model: x}}\nspeculation: {{method: {method}}}\n")
    needed = [
        f"2:1 SD007 `speculation.{key}` is missing (method `{method}`)" for key in METHODS[method].needs
    ]
    assert [line.partition(" | ")[0] for line in told] == needed


@pytest.mark.parametrize("version", known_versions())
def test_every_key_that_vllm_takes_is_a_key_of_a_method(version: str) -> None:
    known = table(version)

    assert known.speculation.keys() - EVERY_KEY.keys() == {"tensor_parallel_size"}  # taken, to be refused
    assert METHODS.keys() <= set(known.methods)


def test_alternatives_are_judged_like_the_block_itself(problems: Problems) -> None:
    text = """\
target: {model: x}
alternatives:
  a: {method: ngram}
  b: null
  c: word
  d e: {method: suffix}
  f: {method: sufix}
"""
    assert problems(text) == [
        "3:3 SD007 `alternatives.a.num_speculative_tokens` is missing (method `ngram`) | K: tokens drafted per step.",
        "5:6 SD006 `alternatives.c` must be a mapping or `null`; found `word`",
        "6:3 SD006 a name in `alternatives` must be letters, digits, `-` and `_`, and not `baseline`, which is no"
        " speculation; found `d e`",
        f"7:15 SD006 `alternatives.f.method` must be {_ALL}; found `sufix` | did you mean `suffix`?",
    ]
    assert problems("target: {model: x}\nalternatives: [1]\n") == [
        "2:15 SD006 `alternatives` must be a mapping; found a list"
    ]


def test_what_vllm_takes_and_specserve_does_not_leaves_the_rest_of_the_profile(write: Write) -> None:
    text = "target: {model: x}\nspeculation: {method: suffix, prompt_lookup_max: 3}\n"
    text += "alternatives: {a: {method: arctic}}\n"
    profile, findings = examine(write(text))
    assert profile and profile.speculation and dict(profile.speculation.keys) == {"method": "suffix"}
    assert (profile.alternatives, [finding.policy for finding in findings]) == ({}, [True, True])
