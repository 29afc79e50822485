"""Pairs that everybody knows to be wrong are errors without the Hub; public pairs that work are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.cli.app import _run
from specserve.models.facts import _published
from specserve.models.tokenizers import tokenizer_family
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
Findings = Callable[..., list[dict[str, Any]]]
ROOT = Path(__file__).parents[2]
PAIRS = yaml.safe_load((ROOT / "tests" / "data" / "draft_pairs.yaml").read_text(encoding="utf-8"))
BLOCK = "{{method: draft_model, model: {}, num_speculative_tokens: 5{}}}"
OURS = {"SD201", "SD202"}


@pytest.fixture
def linted(write: Write, capsys: Captured) -> Findings:
    """What a command finds of a pair that these rules are about; its exit code is checked."""

    def run(
        target: str, draft: str, *, more: str = "", rest: str = "", command: str = "lint"
    ) -> list[dict[str, Any]]:
        target = target if target.startswith("{") else f"{{model: {target}, tensor_parallel_size: 4}}"
        file = write(f"target: {target}\nspeculation: {BLOCK.format(draft, more)}\n{rest}")
        code = _run([*command.split(), str(file), "--format", "json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        assert code == int(any(item["severity"] == "error" for item in found))
        return [item for item in found if item["code"] in OURS]

    return run


def said(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["code"], item["severity"]) for item in found]


@pytest.mark.parametrize("command", ["lint", "check --offline"])
def test_the_pair_of_the_article_is_an_error_that_names_both_families(linted: Findings, command: str) -> None:
    names = ("meta-llama/Llama-3-70B-Instruct", "Qwen/Qwen2-7B-Instruct")
    (error,) = [item for item in linted(*names, command=command) if item["severity"] == "error"]
    assert error["code"] == "SD201" and error["span"]["path"] == "speculation.model"
    assert error["message"] == "draft and target have different tokenizers: Qwen 1.5 to 3 and Llama 3"
    (other,) = error["related"]
    assert (other["span"]["path"], other["label"]) == ("target.model", "128,256 entries")
    assert any(note.startswith("basis: published, github:Lightning-AI/litgpt@") for note in error["notes"])
    assert "`use_heterogeneous_vocab: true`" in error["help"]


@pytest.mark.parametrize("pair", PAIRS["works"], ids=lambda pair: " ".join(pair[:2]))
def test_a_public_pair_that_works_has_no_error_and_no_warning(linted: Findings, pair: list[str]) -> None:
    target, draft, source, *mapped = pair
    assert "/" in source and tokenizer_family(target) and tokenizer_family(draft)
    assert linted(target, draft, more=", use_heterogeneous_vocab: true" if mapped else "") == []


@pytest.mark.parametrize("pair", PAIRS["refused"], ids=lambda pair: " ".join(pair[:2]))
def test_a_public_pair_that_vllm_refuses_is_an_error(linted: Findings, pair: list[str]) -> None:
    target, draft, _ = pair
    (found,) = linted(target, draft)
    assert said([found]) == [("SD201", "error")]
    two = tokenizer_family(draft)
    assert two and found["label"] == f"{two.vocab_size:,} entries"
    assert linted(target, draft, more=", use_heterogeneous_vocab: true") == []


def test_two_families_of_one_size_are_an_error_too(linted: Findings) -> None:
    """vLLM starts such a pair, and no draft token is accepted but by chance."""
    (found,) = linted("CohereLabs/c4ai-command-r-plus", "google/gemma-2-2b-it")
    assert said([found]) == [("SD202", "error")]
    assert found["message"].startswith("draft and target have different tokenizers: ")


@pytest.mark.parametrize(
    ("target", "draft", "more"),
    [
        ("Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", ""),
        ("Qwen/Qwen3-32B", "Qwen/Qwen2.5-0.5B-Instruct", ""),
        ("./models/Llama-3.1-8B", "Qwen/Qwen3-0.6B", ""),
        ("somebody/Llama-3.1-8B-tuned", "Qwen/Qwen3-0.6B", ""),
        ("meta-llama/Llama-3.1-405B", "somebody/draft-1b", ""),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-Embedding-0.6B", ""),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "meta-llama/Llama-3.2-1B-Instruct", ""),
        ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-0.6B", ", use_heterogeneous_vocab: true"),
    ],
)
def test_what_shares_ids_or_is_not_known_is_no_finding(
    linted: Findings, target: str, draft: str, more: str
) -> None:
    assert linted(target, draft, more=more) == []


def test_a_head_is_not_judged_by_its_name(linted: Findings) -> None:
    rest = "alternatives: {h: {method: eagle3, model: Qwen/Qwen3-0.6B, num_speculative_tokens: 3}}\n"
    assert linted("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", rest=rest) == []


def test_each_alternative_is_judged(linted: Findings) -> None:
    rest = f"alternatives:\n  a: {BLOCK.format('Qwen/Qwen3-0.6B', '')}\n  b: {BLOCK.format('openai/gpt-oss-20b', '')}\n"
    found = linted("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", rest=rest)
    assert [item["span"]["path"] for item in found] == ["alternatives.a.model", "alternatives.b.model"]


def test_the_tokenizer_that_the_profile_names_decides_what_the_ids_mean(linted: Findings) -> None:
    target = "{{model: meta-llama/Llama-2-7b-hf, tokenizer: {}}}"
    draft = "mistralai/Mistral-7B-v0.1"
    assert said(linted(target.format("mistralai/Mixtral-8x7B-v0.1"), draft)) == []
    assert said(linted(target.format("./mine"), draft)) == []
    assert said(linted(target.format("TinyLlama/TinyLlama-1.1B-Chat-v1.0"), draft)) == [("SD202", "error")]
    assert said(linted(target.format("./mine"), "Qwen/Qwen3-0.6B")) == [("SD201", "error")]  # by vLLM's sizes


def test_a_profile_that_changes_the_configuration_and_a_directory_of_that_name_are_not_judged(
    linted: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-0.6B")
    assert linted(*pair, rest="engine: {hf_overrides: {vocab_size: 152064}}\n") == []
    assert linted(*pair, rest="engine: {hf_config_path: ./other}\n") == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    assert linted(*pair) == []


def test_a_comment_silences_it_and_is_not_called_unused_where_no_name_decides(
    write: Write, told: Told
) -> None:
    draft = "{method: draft_model, num_speculative_tokens: 5, model: %s}  # specserve: ignore[SD201] measured"
    text = f"target: {{model: %s}}\nspeculation: {draft}\n"
    for pair in (("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-0.6B"), ("./a", "./b"), ("org/a", "org/b")):
        assert "SD201" not in told(0, "lint", str(write(text % pair)), "--strict")[0]


@pytest.mark.parametrize(
    ("copy", "size"),
    [
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 128256),
        ("nvidia/Llama-4-Scout-17B-16E-Instruct-FP8", 202048),
        ("unsloth/Qwen3-30B-A3B-Thinking-2507-GGUF", 151936),
        ("TheBloke/Mistral-7B-Instruct-v0.2-GPTQ", 32000),
        ("RedHatAI/Llama-3.1-8B-tldr", None),
        ("TheBloke/Llama-2-7b-chat-hf-function-calling-v2-AWQ", None),
        ("nvidia/Llama-3.3-70B-Instruct-Eagle3", None),
        ("nvidia/Llama-3.1-8B-" + "1." * 40 + "x", None),
        # may be new, or somebody else's
        *((f"Qwen/{name}", None) for name in ("Qwen3-80B", "Qwen-14B", "Qwen3-08B-A3B", "Qwen4-8B")),
        *((f"google/gemma-{name}-it", None) for name in ("2.7-1b", "1.1-7b")),
        *((name, None) for name in ("acme/Qwen3-8B", "gpt2", "deepseek-community/DeepSeek-V3", "a" * 5000)),
        ("-".join("a" * 3000), None),
    ],
)
def test_a_copy_counts_as_its_model_and_what_may_be_another_as_nothing(copy: str, size: int | None) -> None:
    found = tokenizer_family(copy)
    assert (found and found.vocab_size) == size


def test_the_sizes_are_those_of_the_configurations_that_ship() -> None:
    for name, entry in _published().items():
        config = entry["config"]
        size = config.get("text_config", {}).get("vocab_size") or config.get("vocab_size")
        family = tokenizer_family(name)
        if family and size:
            assert family.vocab_size == size, name
