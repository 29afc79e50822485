"""Options as vLLM's own parser splits them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specserve.convert.arguments import command_settings, options
from specserve.convert.words import argv_words, plain
from specserve.diagnostics import Finding

KNOWN = options()


def settings(*words: str) -> dict[str, Any]:
    found: list[Finding] = []
    made = command_settings(argv_words(words)[1], KNOWN, folder=Path(), found=found, unresolved=found)
    assert found == []
    return {name: plain(setting.node) for name, setting in made.items()}


def problems(*words: str) -> list[str]:
    found: list[Finding] = []
    command_settings(argv_words(words)[1], KNOWN, folder=Path(), found=found, unresolved=found)
    return [finding.message for finding in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max_num_seqs=64"], {"max_num_seqs": 64}),
        (["-tp", "4", "-pp=2"], {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        (["--tensor-parallel", "4"], {"tensor_parallel_size": 4}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--max-model-len", "-1"], {"max_model_len": -1}),
        (["--gpu-memory-utilization", ".9"], {"gpu_memory_utilization": 0.9}),
        (["-O3"], {"optimization_level": 3}),
        (["--served-model-name", "a", "b"], {"served_model_name": ["a", "b"]}),
        (["-sc", '{"method": "ngram"}'], {"speculative_config": {"method": "ngram"}}),
        (
            ["--speculative-config.method", "mtp", "--speculative_config.num_speculative_tokens=1"],
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
        ),
        (["-cc.pass_config.a=True"], {"compilation_config": {"pass_config": {"a": "True"}}}),
        (["--compilation-config.sizes+", "1,2"], {"compilation_config": {"sizes": ["1", "2"]}}),
        (["--middleware", "a.b", "--middleware", "c.d"], {"middleware": ["a.b", "c.d"]}),
        (["--unheard-of", "3"], {"unheard_of": 3}),
        (["--unheard-of", "--seed", "1"], {"unheard_of": True, "seed": 1}),
    ],
)
def test_words_become_the_values_that_vllm_reads(words: list[str], expected: dict[str, Any]) -> None:
    assert settings(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-num-seqs"], "`--max-num-seqs` needs a value"),
        (["--max-num-seqs", "--seed", "1"], "`--max-num-seqs` needs a value"),
        (
            ["--enforce-eager=true"],
            "`--enforce-eager true` is `--enforce-eager` today: a switch takes no value",
        ),
        (["--speculative-config.method"], "`--speculative-config` needs a value"),
        (
            ["--speculative-config", "{"],
            "the value of `--speculative-config` is not JSON: expecting property name",
        ),
    ],
)
def test_what_the_parser_refuses_is_told(words: list[str], message: str) -> None:
    (found,) = problems(*words)
    assert found.startswith(message)


def test_a_dotted_option_wins_over_the_whole_one_as_vllm_appends_it() -> None:
    words = ("--speculative-config.method", "mtp", "--speculative-config", '{"method": "ngram"}')
    assert problems(*words) == ["`--speculative-config` occurs twice, and the later one wins"]
