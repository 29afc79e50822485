"""Blocks of speculation are judged by the key table of their method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.profile.load import examine, load_profile
from specserve.profile.schema import EVERY_KEY
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import known_versions, table

Problems = Callable[..., list[str]]
Write = Callable[..., Path]
_ALL = " or ".join(", ".join(f"`{method}`" for method in METHODS).rsplit(", ", 1))


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
        ("{model: x}", "2:1 SD007 `speculation.method` is missing | The speculation method."),
        ("{method: }", f"2:23 SD006 `speculation.method` must be {_ALL}; found nothing"),
        ("{methud: ngram}", "2:15 SD005 unknown key `methud` in `speculation` | did you mean `method`?"),
        ("{method: EAGLE_3}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `EAGLE_3` | did you mean `eagle3`?"),
        ("{method: deepseek_mtp, num_speculative_tokens: 1}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `deepseek_mtp` | did you mean `mtp`?"),
        ("{method: medusa, model: x}",
         f"2:23 SD006 `speculation.method` must be {_ALL}; found `medusa` | vLLM 0.33 removed it; heads for"
         " `eagle3` or `mtp` took its place"),
        ("{method: ngram, num_speculative_tokens: 4, model: x}",
         "2:57 SD005 unknown key `model` in `speculation` (method `ngram`)"
            " | leave it out: it has no effect with this method"),
        ("{method: eagle3, model: x, use_heterogeneous_vocab: true}",
         "2:41 SD005 unknown key `use_heterogeneous_vocab` in `speculation` (method `eagle3`)"
            " | leave it out: it has no effect with this method"),
        ("{method: eagle3, model: x, tensor_parallel_size: 2}",
         "2:41 SD005 unknown key `tensor_parallel_size` in `speculation` (method `eagle3`)"
         " | did you mean `draft_tensor_parallel_size`?"),
        ("{method: ngram, num_spec_tokens: 4}",
         "2:30 SD005 unknown key `num_spec_tokens` in `speculation` (method `ngram`)"
         " | did you mean `num_speculative_tokens`?"),
        ("{method: eagle3, model: x, draft_sample_method: gredy}",
         "2:62 SD006 `speculation.draft_sample_method` must be `greedy` or `probabilistic`; found `gredy`"),
        ("{method: eagle3, model: x, num_speculative_tokens: 0}",
         "2:65 SD006 `speculation.num_speculative_tokens` must be an integer of at least 1; found `0`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_block_is_one_problem(problems: Problems, block: str, told: str) -> None:
    assert problems(f"target: {{model: x}}\nspeculation: {block}\n") == [told]


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


def test_a_mistake_below_an_anchor_is_one_problem_however_often_it_is_used(problems: Problems) -> None:
    text = "target: {model: x}\nspeculation: &s {method: suffix, enforce_eager: 3}\nalternatives: {a: *s, b: *s}\n"

    assert problems(text) == [
        "2:49 SD006 `alternatives.a.enforce_eager` must be `true` or `false`; found `3`"
    ]


def test_what_vllm_takes_and_specserve_does_not_leaves_the_rest_of_the_profile(write: Write) -> None:
    text = "target: {model: x}\nspeculation: {method: suffix, prompt_lookup_max: 3}\n"
    text += "alternatives: {a: {method: arctic}}\n"
    profile, findings = examine(write(text))
    assert profile and profile.speculation and dict(profile.speculation.keys) == {"method": "suffix"}
    assert (profile.alternatives, [finding.policy for finding in findings]) == ({}, [True, True])
