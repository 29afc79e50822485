"""The rules about tokenizers on pairs in the layout of public ones: refused, crippled, or served as they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.run import run_rules
from specserve.diagnostics import Finding, Severity
from specserve.profile.schema import Profile
from tests.checks.checkpoints import checkpoint
from tests.models.made import Document, document, swapped

Load = Callable[[str], Profile]
Pair = Callable[..., list[Finding]]
MAPPED = ", use_heterogeneous_vocab: true"
HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_0|>",
    "<|reserved_1|>",
    "<|reserved_2|>",
    *HEADERS,
)
LLAMA31 = (*LLAMA3[:4], "<|finetune_right_pad_id|>", *HEADERS)
R1_LLAMA = ("<\uff5cbegin▁of▁sentence\uff5c>", "<\uff5cend▁of▁sentence\uff5c>", *LLAMA31[2:])
QWEN25 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>")
QWEN3 = (*QWEN25, "<tool_response>", "</tool_response>", "<think>", "</think>")


@pytest.fixture
def pair(tmp_path: Path, profile: Load) -> Pair:
    """Findings on a target and a draft with these tokenizers, by default of 1024 entries each."""

    def judge(
        target: Document, draft: Document | None, *, sizes: tuple[int, int] = (1024, 1024), more: str = "",
        engine: str = "{}",
    ) -> list[Finding]:  # fmt: skip
        for at, made, size in zip(("target", "draft"), (target, draft), sizes, strict=True):
            kind = "llama" if at == "target" else "llama-draft"
            file = checkpoint(tmp_path, kind, at=at, vocab_size=size) / "tokenizer.json"
            file.unlink() if made is None else file.write_text(json.dumps(made))
        block = f"{{method: draft_model, model: ./draft, num_speculative_tokens: 4{more}}}"
        return found(profile(f"target: {{model: ./target}}\nspeculation: {block}\nengine: {engine}"))

    return judge


def found(loaded: Profile) -> list[Finding]:
    context = collect(loaded, wanted=CheckOptions(offline=True, here=False)).context
    findings = run_rules(replace(context, machine=None)).findings
    return [item for item in findings if item.code in ("SD201", "SD202")]


def test_padding_is_refused_by_vllm_and_the_ways_out_are_none(pair: Pair) -> None:
    made = document(specials=QWEN25)
    (finding,) = pair(made, made, sizes=(1152, 1024))
    assert (finding.code, finding.severity, finding.label) == ("SD201", Severity.ERROR, "1,024 entries")
    assert [(item.span.path, item.label) for item in finding.related] == [("target.model", "1,152 entries")]
    assert finding.notes[0].startswith("the tokens are equal")
    assert finding.help is not None and "`use_heterogeneous_vocab: true`" in finding.help
    assert pair(made, made, sizes=(1152, 1024), more=MAPPED) == []
    assert pair(made, made, sizes=(1152, 1024), engine="{hf_overrides: {vocab_size: 1024}}") == []
    assert pair(made, None, sizes=(1024, 1024)) == []  # a tokenizer that is not there refuses nothing


@pytest.mark.parametrize(
    ("target", "draft", "first"),
    [
        pytest.param(QWEN3, QWEN25, "id 806 is ''", id="an older release lacks marks of the template"),
        pytest.param(LLAMA31, LLAMA3, "id 804 is '<|reserved", id="reserved tokens have other names"),
        pytest.param(R1_LLAMA, LLAMA31, "id 800 is '<|begin_of", id="a distilled target has its own marks"),
    ],
)
def test_special_tokens_that_differ_are_a_warning(
    pair: Pair, target: tuple[str, ...], draft: tuple[str, ...], first: str
) -> None:
    (finding,) = pair(document(specials=target), document(specials=draft))
    assert (finding.code, finding.severity) == ("SD202", Severity.WARNING)
    assert finding.label is not None and finding.label.startswith(first)


def test_two_ids_of_eight_hundred_that_differ_are_a_warning(pair: Pair) -> None:
    made = document(size=800)
    (finding,) = pair(made, swapped(made, "Ġ", "e"))
    assert (finding.code, finding.severity) == ("SD202", Severity.WARNING)
    assert finding.message == "2 token ids do not mean the same to the draft"


def test_heads_are_not_compared(profile: Load, tmp_path: Path) -> None:
    for name in ("llama", "llama-eagle3"):
        checkpoint(tmp_path, name)
    block = "{method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}"
    assert found(profile(f"target: {{model: ./llama}}\nspeculation: {block}")) == []
