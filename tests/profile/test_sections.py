"""Sections with fixed keys: what is unknown, missing or in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.profile.load import load_profile

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


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
    ],
)  # fmt: skip
def test_an_unknown_key_is_one_problem_with_the_likely_cure(problems: Problems, text: str, told: str) -> None:
    assert problems(text + "\n") == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {max_model_len: 1k}",
         "2:10 SD005 `max_model_len` does not belong in `engine` | write it as `target.max_model_len`"),
        ("engine: {tensor-parallel-size: 2}",
         "2:10 SD005 `tensor-parallel-size` does not belong in `engine` | write it as `target.tensor_parallel_size`"),
        ("engine: {speculative_config: {method: ngram}}",
         "2:10 SD005 `speculative_config` does not belong in `engine` | write it as `speculation`"),
        ("frontend: {port: 1}", "2:12 SD005 `port` does not belong in `frontend` | write it as `server.port`"),
        ("frontend: {api_key: hush}",
         "2:12 SD005 `api_key` does not belong in `frontend` | write it as `server.api_key_env`"),
    ],
)  # fmt: skip
def test_an_argument_has_one_place(problems: Problems, text: str, told: str) -> None:
    assert problems(f"target: {{model: x}}\n{text}\n") == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {}", "1:1 SD007 `target` is missing | The model whose output is wanted."),
        ("# base\nname: x\ntarget:", "3:8 SD006 `target` must be a mapping; found nothing"),
        ("target: {dtype: auto}",
         "1:1 SD007 `target.model` is missing | Hub id, or a path from the folder of the profile."),
        ("target: {model: ''}", "1:17 SD006 `target.model` must be a name or a path; found the text ``"),
        ("target: {model: --port}", "1:17 SD006 `target.model` must be a name or a path; found `--port`"),
        ("target: x", "1:9 SD006 `target` must be a mapping; found `x`"),
    ],
)  # fmt: skip
def test_a_target_without_a_model_is_one_problem(problems: Problems, text: str, told: str) -> None:
    assert problems(text + "\n") == [told]


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
