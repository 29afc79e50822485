"""Blocks of speculation are judged by the key table of their method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.profile.keys import EVERY_KEY
from specserve.profile.load import load_profile
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import known_versions, table

Problems = Callable[..., list[str]]
Write = Callable[..., Path]
_ALL = ", ".join(f"`{method}`" for method in METHODS)


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


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("{model: x}", f"2:1 SD007 `speculation.method` is missing: vLLM would guess it | one of {_ALL}"),
        ("{method: }", f"2:23 SD007 `speculation.method` is missing: vLLM would guess it | one of {_ALL}"),
        ("{method: [x]}", f"2:23 SD006 `speculation.method` must be a text; found a list | one of {_ALL}"),
        ("{methud: ngram}", "2:15 SD005 unknown key `methud` in `speculation` | did you mean `method`?"),
        ("{method: eagle_3}", "2:23 SD006 unknown method `eagle_3` | did you mean `eagle3`?"),
        ("{method: EAGLE3}", "2:23 SD006 unknown method `EAGLE3` | did you mean `eagle3`?"),
        ("{method: yes}", f"2:23 SD006 unknown method `yes` | one of {_ALL}"),
        (
            "{method: deepseek_mtp, num_speculative_tokens: 1}",
            "2:23 SD006 `deepseek_mtp` is an old name of the method `mtp` | write `method: mtp`",
        ),
        (
            "{method: medusa, model: x}",
            "2:23 SD006 `medusa` is not a method of speculation: vLLM 0.33 removed it; heads for `eagle3` or"
            f" `mtp` took its place | one of {_ALL}",
        ),
        (
            "{method: ngram, num_speculative_tokens: 4, model: x}",
            "2:57 SD005 `model` is a key of `draft_model` and others, and has no effect with `ngram` | leave it out",
        ),
        (
            "{method: suffix, prompt_lookup_max: 4}",
            "2:31 SD005 `prompt_lookup_max` is a key of `ngram` and others, and has no effect with `suffix`"
            " | leave it out",
        ),
        (
            "{method: eagle3, model: x, use_heterogeneous_vocab: true}",
            "2:41 SD005 `use_heterogeneous_vocab` is a key of `draft_model`, and has no effect with `eagle3`"
            " | leave it out",
        ),
        (
            "{method: eagle3, model: x, tensor_parallel_size: 2}",
            "2:41 SD005 `tensor_parallel_size` is a key that vLLM refuses in `speculation`"
            " | write `draft_tensor_parallel_size`",
        ),
        (
            "{method: ngram, num_spec_tokens: 4}",
            "2:30 SD005 unknown key `num_spec_tokens` in `speculation` (method `ngram`)"
            " | did you mean `num_speculative_tokens`?",
        ),
        (
            "{method: eagle3, model: x, draft_sample_method: gredy}",
            "2:62 SD006 `speculation.draft_sample_method` must be `greedy` or `probabilistic`; found `gredy`",
        ),
        (
            "{method: eagle3, model: x, num_speculative_tokens: 0}",
            "2:65 SD006 `speculation.num_speculative_tokens` must be at least 1; found `0`",
        ),
    ],
)
def test_a_mistake_in_a_block_is_one_problem(problems: Problems, block: str, told: str) -> None:
    assert problems(f"target: {{model: x}}\nspeculation: {block}\n") == [told]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_what_it_needs(problems: Problems, method: str) -> None:
    told = problems(f"target: {{model: x}}\nspeculation: {{method: {method}}}\n")
    needed = [*METHODS[method].needs]

    assert told == [f"2:1 SD007 `speculation.{key}` is missing, which `{method}` needs" for key in needed]


@pytest.mark.parametrize("version", known_versions())
def test_every_key_that_vllm_takes_is_a_key_of_a_method(version: str) -> None:
    known = table(version)

    assert known.speculation.keys() - EVERY_KEY.keys() == {"tensor_parallel_size"}  # taken, to be refused
    assert METHODS.keys() <= set(known.methods)


def test_every_key_of_a_method_is_one_that_some_vllm_takes() -> None:
    assert EVERY_KEY.keys() <= {key for version in known_versions() for key in table(version).speculation}


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
        "3:3 SD007 `alternatives.a.num_speculative_tokens` is missing, which `ngram` needs",
        "5:6 SD006 `alternatives.c` must be a mapping or `null`; found `word`",
        "6:3 SD006 `d e` is not a valid name of an alternative | use letters, digits, `-` and `_`",
        "7:15 SD006 unknown method `sufix` | did you mean `suffix`?",
    ]
    assert problems("target: {model: x}\nalternatives: [1]\n") == [
        "2:15 SD006 `alternatives` must be a mapping of names to blocks; found a list"
    ]


def test_a_mistake_below_an_anchor_is_one_problem_however_often_it_is_used(problems: Problems) -> None:
    text = "target: {model: x}\nspeculation: &s {method: suffix, enforce_eager: 3}\nalternatives: {a: *s, b: *s}\n"

    assert problems(text) == [
        "2:49 SD006 `alternatives.a.enforce_eager` must be `true` or `false`; found `3`"
    ]
