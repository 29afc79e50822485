"""The rules about tokenizers on pairs in the layout of public ones: refused, crippled, or served as they should."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.run import run_rules
from specserve.diagnostics import Finding, Severity
from specserve.profile.schema import Profile
from tests.checks.checkpoints import checkpoint
from tests.models.tokenizers.made import Document, document, swapped

Load = Callable[[str], Profile]
Pair = Callable[..., list[Finding]]
CODES = {f"SD2{number:02d}" for number in range(1, 20)}

RESERVED = tuple(f"<|reserved_special_token_{number}|>" for number in range(6))
HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *RESERVED[:4],
    *HEADERS,
    RESERVED[4],
    "<|eot_id|>",
    RESERVED[5],
)
LLAMA31 = (
    *LLAMA3[:4],
    "<|finetune_right_pad_id|>",
    RESERVED[2],
    *HEADERS,
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
R1_LLAMA = (
    "<\uff5cbegin▁of▁sentence\uff5c>",
    "<\uff5cend▁of▁sentence\uff5c>",
    *LLAMA31[2:6],
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    *LLAMA31[8:],
)
QWEN25 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>")
QWEN3 = (*QWEN25, "<tool_response>", "</tool_response>", "<think>", "</think>")


@pytest.fixture
def pair(tmp_path: Path, profile: Load) -> Pair:
    """Findings of SD201 to SD219 on a target and a draft with these tokenizers, by default of 1024 entries each."""

    def judge(
        target: Document | None,
        draft: Document | None,
        *,
        sizes: tuple[int, int] = (1024, 1024),
        more: str = "",
        engine: str = "{}",
        **beside: Any,
    ) -> list[Finding]:
        for at, made, size in zip(("target", "draft"), (target, draft), sizes, strict=True):
            folder = checkpoint(tmp_path, "llama" if at == "target" else "llama-draft", at=at)
            written = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**written, "vocab_size": size}))
            if made is None:
                (folder / "tokenizer.json").unlink()
            else:
                (folder / "tokenizer.json").write_text(json.dumps(made))
        block = f"{{method: draft_model, model: ./draft, num_speculative_tokens: 4{more}}}"
        target_block = beside.get("target_block", "{model: ./target}")
        loaded = profile(f"target: {target_block}\nspeculation: {block}\nengine: {engine}")
        context = replace(
            collect(loaded, wanted=CheckOptions(offline=True, here=False)).context, machine=None
        )
        return [item for item in run_rules(context)[0] if item.code in CODES]

    return judge


def test_padding_is_refused_by_vllm_and_the_way_out_is_named(pair: Pair) -> None:
    made = document(specials=QWEN25)
    (finding,) = pair(made, made, sizes=(1152, 1024))
    assert (finding.code, finding.severity, finding.label) == ("SD201", Severity.ERROR, "1,024 entries")
    assert [(item.span.path, item.label) for item in finding.related] == [("target.model", "1,152 entries")]
    assert finding.notes[0].startswith("the tokens are equal")
    assert finding.help is not None and "`use_heterogeneous_vocab: true`" in finding.help


def test_padding_is_served_where_the_vocabularies_are_mapped(pair: Pair) -> None:
    made = document(specials=QWEN25)
    more = ", use_heterogeneous_vocab: true"
    assert pair(made, made, sizes=(1152, 1024), more=more) == []


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


def test_sizes_that_the_profile_overrides_are_not_judged(pair: Pair) -> None:
    made = document(specials=QWEN25)
    engine = "{hf_overrides: {vocab_size: 1024}}"
    assert pair(made, made, sizes=(1152, 1024), engine=engine) == []


def test_a_tokenizer_that_is_not_there_refuses_nothing(pair: Pair) -> None:
    assert pair(document(), None) == []


def test_heads_and_lookups_are_not_compared(profile: Load, tmp_path: Path) -> None:
    for name in ("llama", "llama-eagle3"):
        checkpoint(tmp_path, name)
    for block in (
        "{method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}",
        "{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}",
    ):
        loaded = profile(f"target: {{model: ./llama}}\nspeculation: {block}")
        context = collect(loaded, wanted=CheckOptions(offline=True, here=False)).context
        assert not context.tokenizers
        assert not CODES & {item.code for item in run_rules(replace(context, machine=None))[0]}
