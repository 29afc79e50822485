"""A raw command as settings and as a profile: read as vLLM does, every place in the command line itself."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from specserve.convert.arguments import command_settings, options
from specserve.convert.command import profile_of
from specserve.convert.words import argv_words, plain
from specserve.diagnostics import Finding, Severity, Span
from specserve.profile.schema import Profile
from specserve.profile.source import read

SPECULATION = """--speculative-config '{"model": "org/draft", "num_speculative_tokens": 5}'"""


def profile(text: str) -> Profile:
    found, _ = profile_of(shlex.split(text))
    assert found is not None
    return found


def findings(text: str) -> list[Finding]:
    return profile_of(shlex.split(text))[1]


def marked(span: Span) -> str:
    """What a place of the last command covers."""
    assert (span.file, span.line, span.end_line) == ("<command>", 1, 1)
    return read("<command>").decode()[span.column - 1 : span.end_column - 1]


def test_a_command_without_a_method_has_the_one_that_vllm_infers() -> None:
    for model, method in [
        ("org/draft", "draft_model"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle"),
        ("z-lab/Qwen3-8B-DFlash-b16", "dflash"),
        ("[ngram]", "ngram"),
    ]:
        config = f'{{"model": "{model}", "num_speculative_tokens": 3}}'
        found = profile(f"vllm serve org/target --speculative-config '{config}'")
        assert found.speculation is not None and found.speculation.method == method


def test_a_value_points_to_its_word() -> None:
    found = profile(f"vllm serve org/it\\'s -tp 4 --max-num-seqs=64 {SPECULATION}")
    assert marked(found.span("target.tensor_parallel_size")) == "4"
    assert marked(found.key_span("target.tensor_parallel_size")) == "-tp"
    assert marked(found.span("engine.max_num_seqs")) == "64"
    assert marked(found.span("speculation.model")).startswith("'{")


def test_each_flag_of_old_is_an_error_that_names_convert() -> None:
    text = "vllm serve org/target --speculative-model org/draft --use-v2-block-manager --host 127.0.0.1"
    found = findings(text)
    assert [(one.code, marked(one.span)) for one in found] == [
        ("SD102", "--speculative-model"),
        ("SD102", "--use-v2-block-manager"),
    ]
    assert found[0].message == "vLLM no longer has `--speculative-model`"
    assert found[0].help and "specserve convert" in found[0].help


def test_no_secret_is_shown() -> None:
    text = "HF_TOKEN=abcdefghijklmnop vllm serve org/target --api-key verysecretkey --hf-token=hf_abcdefghijklmnopqrst"
    found = findings(text)
    assert [item.code for item in found] == ["SD107", "SD107"]
    line = read("<command>").decode()
    assert not any(
        secret in line for secret in ("abcdefghijklmnop", "verysecretkey", "hf_abcdefghijklmnopqrst")
    )
    assert len(line) == len(text)


def test_without_a_host_vllm_listens_everywhere_but_not_where_specserve_launches_it() -> None:
    found = profile("vllm serve org/target")
    assert found.server.host == "0.0.0.0" and marked(found.span("server.host")) == "vllm"
    launched, _ = profile_of(["vllm", "serve", "org/target"], asked="up")
    assert launched and launched.server.host == "127.0.0.1"


def test_what_stands_twice_is_told_with_both_places() -> None:
    (found,) = findings("vllm serve org/target --host 127.0.0.1 --seed 1 --seed 2")
    assert (found.code, found.severity) == ("SD004", Severity.WARNING)
    assert marked(found.span) == "--seed" and found.related[0].span.column < found.span.column
    assert profile("vllm serve org/target --seed 1 --seed 2").engine["seed"] == 2


def test_a_method_under_an_old_name_works_and_is_a_warning() -> None:
    config = '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'
    text = f"vllm serve org/target --host 127.0.0.1 --speculative-config '{config}'"
    (found,) = findings(text)
    assert found.severity is Severity.WARNING and "deepseek_mtp" in marked(found.span)
    speculation = profile(text).speculation
    assert speculation is not None and speculation.method == "mtp"


def test_the_file_of_arguments_lies_under_the_command_and_keeps_its_own_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("args.yaml").write_text("max-num-seqs: 32\nseed: 3\n")
    found = profile("vllm serve org/target --config args.yaml --seed 4")
    assert dict(found.engine) == {"max_num_seqs": 32, "seed": 4}
    assert str(found.span("engine.max_num_seqs")) == "args.yaml:1:15"


KNOWN = options()


def settings_of(*words: str) -> dict[str, Any]:
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
        (
            ["--compilation-config.sizes", "12", "--compilation-config.sizes+", "3"],
            {"compilation_config": {"sizes": ["3"]}},
        ),
        (["--middleware", "a.b", "--middleware", "c.d"], {"middleware": ["a.b", "c.d"]}),
        (["--unheard-of", "3"], {"unheard_of": 3}),
        (["--unheard-of", "--seed", "1"], {"unheard_of": True, "seed": 1}),
    ],
)
def test_words_become_the_values_that_vllm_reads(words: list[str], expected: dict[str, Any]) -> None:
    assert settings_of(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--limit-mm-per-prompt", "image=4,video=1"],
            'the value of `--limit-mm-per-prompt` must be JSON: `image=4,video=1` becomes `{"image": 4,',
        ),
        (["--max-num-seqs"], "`--max-num-seqs` needs a value"),
        (["--max-num-seqs", "--seed", "1"], "`--max-num-seqs` needs a value"),
        (["--config=args.yaml"], "vLLM ignores `--config=FILE`: it reads `--config FILE` only"),
        (
            ["--enforce-eager=true"],
            "`--enforce-eager true` is `--enforce-eager` today: a switch takes no value",
        ),
        (["--speculative-config.method"], "`--speculative-config` needs a value"),
        (  # vLLM appends a dotted option
            ["--speculative-config.method", "mtp", "--speculative-config", '{"method": "ngram"}'],
            "`--speculative-config` occurs twice, and the later one wins",
        ),
        (
            ["--speculative-config", "{"],
            "the value of `--speculative-config` is not JSON: expecting property name",
        ),
    ],
)
def test_what_the_parser_refuses_is_told(words: list[str], message: str) -> None:
    (found,) = problems(*words)
    assert found.startswith(message)
