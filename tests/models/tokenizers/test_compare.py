"""The verdict on pairs of tokenizers, in the layouts of public ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizercompare import TokenDifference, compare
from tests.models.tokenizers.made import document, swapped, tokens_of

Make = Callable[..., ModelFacts]
LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_0|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip
CHAT = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{% endfor %}"
CONFIG = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": CHAT}


def test_the_same_bytes_are_identical_without_a_look_inside(model: Make) -> None:
    broken = b"this was never JSON"
    result = compare(model(tokenizer__json=broken), model(tokenizer__json=broken))
    assert (result.verdict, result.overlap, result.mismatch_by_occurrence) == ("identical", 1.0, 0.0)
    assert result.reasons == ()


def test_files_that_differ_and_are_not_here_are_not_checked() -> None:
    one, two = (
        ModelFacts(name, "lock", {"vocab_size": 9}, files={"tokenizer.json": ModelFile(9, name * 64)})
        for name in ("a", "b")
    )
    result = compare(one, two)
    assert result.verdict == "not_checked"
    assert result.reasons == ("`tokenizer.json` of `a` is not on this machine",)
    assert (result.target_vocab_size, result.draft_vocab_size) == (9, 9)


def test_another_layout_of_the_same_tokens_is_identical(model: Make) -> None:
    made = document(specials=LLAMA)
    spread = json.dumps(made, indent=2).encode()
    result = compare(model(made), model(tokenizer__json=spread))
    assert (result.verdict, result.reasons, result.differing_ids) == ("identical", (), 0)


def test_padding_of_the_embedding_is_told_from_other_tokens(model: Make) -> None:
    made = document(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    result = compare(model(made, vocab_size=152_064), model(made, vocab_size=151_936))
    assert result.verdict == "padding_only"
    assert result.reasons == (
        "the tokens are equal; padded, `vocab_size` is 152,064 (target) and 151,936 (draft)",
    )
    assert (result.target_vocab_size, result.draft_vocab_size) == (152_064, 151_936)


def test_two_files_beside_equal_vocabularies_may_name_other_ends_of_text(model: Make) -> None:
    made = document(specials=LLAMA)
    base = model(made, tokenizer_config__json={"eos_token": "<|end_of_text|>"})
    instruct = model(made, tokenizer_config__json=CONFIG)
    assert compare(instruct, base).verdict == "identical"


def test_a_reserved_token_with_another_name_is_a_special_difference(model: Make) -> None:
    renamed = tuple(text.replace("<|reserved_0|>", "<|finetune_pad|>") for text in LLAMA)
    result = compare(
        model(document(specials=renamed), tokenizer_config__json=CONFIG), model(document(specials=LLAMA))
    )
    assert result.verdict == "special_tokens_differ"
    assert result.first_difference == TokenDifference(802, "<|finetune_pad|>", "<|reserved_0|>")
    assert (result.differing_ids, result.mismatch_by_occurrence, result.template_ids) == (1, 0.0, ())


def test_special_ids_of_the_chat_template_are_named(model: Make) -> None:
    other = ("<s>", "<|end_of_text|>", "<|reserved_0|>", "<user>", "<|end_header_id|>")
    result = compare(
        model(document(specials=LLAMA), tokenizer_config__json=CONFIG), model(document(specials=other))
    )
    assert result.template_ids == (
        TokenDifference(800, "<|begin_of_text|>", "<s>"),
        TokenDifference(803, "<|start_header_id|>", "<user>"),
        TokenDifference(805, "<|eot_id|>", None),
    )


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "named"])
def test_the_chat_template_is_found_wherever_it_stands(model: Make, place: str) -> None:
    places: dict[str, dict[str, Any]] = {
        "chat_template.jinja": {"chat_template__jinja": CHAT.encode()},
        "tokenizer_config.json": {"tokenizer_config__json": {"chat_template": CHAT}},
        "named": {"tokenizer_config__json": {"chat_template": [{"name": "default", "template": CHAT}]}},
    }
    result = compare(model(document(specials=LLAMA), **places[place]), model(document(specials=LLAMA[:3])))
    assert [item.target for item in result.template_ids] == ["<|start_header_id|>", "<|end_header_id|>"]


def test_rare_tokens_weigh_little_and_common_ones_much(model: Make) -> None:
    made = document()
    rare = compare(model(made), model(swapped(made, "ð", "ñ")))
    common = compare(model(made), model(swapped(made, "Ġ", "e")))
    assert rare.verdict == common.verdict == "overlap"
    assert rare.differing_ids == common.differing_ids == 2
    assert rare.mismatch_by_occurrence is not None and common.mismatch_by_occurrence is not None
    assert rare.mismatch_by_occurrence < 0.02 < common.mismatch_by_occurrence
    assert rare.overlap == common.overlap == 1.0


def test_a_smaller_vocabulary_of_the_same_kind_overlaps(model: Make) -> None:
    result = compare(model(document(size=1000)), model(document(size=500)))
    assert result.verdict == "overlap"
    assert result.overlap == 1.0 and result.shared_tokens == 500
    assert result.kept_by_occurrence is not None and 0.1 < result.kept_by_occurrence < 1


def test_scripts_that_share_no_token_are_incompatible(model: Make) -> None:
    made = document()
    vocab = {f"<{index}>": index for index in range(800)}
    other = {**made, "model": {**made["model"], "vocab": vocab, "merges": []}}
    result = compare(model(made), model(other))
    assert (result.verdict, result.overlap, result.shared_tokens) == ("incompatible", 0.0, 0)
    assert result.mismatch_by_occurrence == 1.0


def test_the_tokenizer_of_another_repository_takes_the_place_of_the_targets(model: Make) -> None:
    made, other = document(specials=LLAMA), document(size=500)
    target, draft, override = model(other), model(made), model(made)
    assert compare(target, draft).verdict == "overlap"
    assert compare(target, draft, tokenizer=override).verdict == "identical"


def test_other_ways_to_the_same_ids_are_told_and_change_no_verdict(model: Make) -> None:
    made = document()
    other = {**made, "normalizer": {"type": "NFC"}, "model": {**made["model"], "merges": []}}
    result = compare(model(made), model(other))
    assert result.verdict == "identical"
    assert result.reasons == (
        "the ids are equal, but text is split differently: `merges`, `normalizer` differ",
    )


def test_other_chat_templates_are_told_and_change_no_verdict(model: Make) -> None:
    made = document(specials=LLAMA)
    one, two = ({**CONFIG, "chat_template": CHAT + extra} for extra in ("", "today"))
    result = compare(model(made, tokenizer_config__json=one), model(made, tokenizer_config__json=two))
    assert (result.verdict, result.reasons) == (
        "identical",
        ("the chat templates differ; the draft reads the target's",),
    )


def test_a_draft_without_a_tokenizer_is_not_checked(model: Make) -> None:
    result = compare(model(document()), model(name="bare"))
    assert result.verdict == "not_checked"
    assert "`org/bare` has none of the tokenizer files" in result.reasons[0]


def test_a_vocab_json_means_the_same_as_the_tokenizer_json_made_of_it(model: Make) -> None:
    made = document(specials=("<|endoftext|>",))
    draft = model(
        vocab__json=made["model"]["vocab"],
        tokenizer_config__json={"added_tokens_decoder": {"800": {"content": "<|endoftext|>"}}},
    )
    assert compare(model(made), draft).verdict == "identical"
    assert len(tokens_of(made)) == 801


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "llama", "vocab_size": 128_256}, 128_256),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "vocab_size": 9}}, 9),
        ({"vocab_size": 7}, 7),
        ({"model_type": "llama", "vocab_size": "many"}, None),
        ({}, None),
    ],
)
def test_the_size_is_the_language_models(model: Make, config: dict[str, Any], size: int | None) -> None:
    facts = model(document(), vocab_size=None, config=config)
    assert compare(facts, facts).target_vocab_size == size
