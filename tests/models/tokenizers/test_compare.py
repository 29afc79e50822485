"""The verdict on pairs of tokenizers, in the layouts of public ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizers import compare
from tests.models.tokenizers.made import document, swapped

Make = Callable[..., ModelFacts]
LLAMA = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_0|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
)  # fmt: skip


def test_files_that_differ_and_are_not_here_are_not_checked() -> None:
    one, two = (
        ModelFacts(name, "lock", {"vocab_size": 9}, files={"tokenizer.json": ModelFile(9, name * 64)})
        for name in ("a", "b")
    )
    result = compare(one, two)
    assert result.verdict == "not_checked"
    assert result.reason == "there is no `tokenizer.json` of `a` at hand"
    assert (result.target_vocab_size, result.draft_vocab_size) == (9, 9)


def test_another_layout_of_the_same_tokens_is_identical(model: Make) -> None:
    made = document(specials=LLAMA)
    spread = json.dumps(made, indent=2).encode()
    result = compare(model(made), model(tokenizer__json=spread))
    assert (result.verdict, result.reason, result.differing_ids) == ("identical", None, 0)


def test_padding_of_the_embedding_is_told_from_other_tokens(model: Make) -> None:
    made = document(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    result = compare(model(made, vocab_size=152_064), model(made, vocab_size=151_936))
    assert result.verdict == "identical"
    assert (result.target_vocab_size, result.draft_vocab_size) == (152_064, 151_936)


def test_a_reserved_token_with_another_name_is_the_first_that_differs(model: Make) -> None:
    renamed = tuple(text.replace("<|reserved_0|>", "<|finetune_pad|>") for text in LLAMA)
    result = compare(model(document(specials=renamed)), model(document(specials=LLAMA)))
    assert result.first_difference == (802, "<|finetune_pad|>", "<|reserved_0|>")
    assert (result.verdict, result.differing_ids) == ("different", 1)


def test_two_ids_of_eight_hundred_are_a_small_share(model: Make) -> None:
    made = document()
    result = compare(model(made), model(swapped(made, "Ġ", "e")))
    assert (result.verdict, result.differing_ids, result.overlap) == ("different", 2, 1.0)
    assert result.differing_share == pytest.approx(2 / 800)


def test_a_smaller_vocabulary_of_the_same_kind_overlaps(model: Make) -> None:
    result = compare(model(document(size=1000)), model(document(size=500)))
    assert result.verdict == "different"
    assert result.overlap == 1.0 and result.shared_tokens == 500


def test_scripts_that_share_no_token_have_no_overlap(model: Make) -> None:
    made = document()
    vocab = {f"<{index}>": index for index in range(800)}
    other = {**made, "model": {**made["model"], "vocab": vocab, "merges": []}}
    result = compare(model(made), model(other))
    assert (result.verdict, result.overlap, result.shared_tokens) == ("different", 0.0, 0)
    assert result.differing_share == 1.0


def test_the_tokenizer_of_another_repository_takes_the_place_of_the_targets(model: Make) -> None:
    made, other = document(specials=LLAMA), document(size=500)
    target, draft, override = model(other), model(made), model(made)
    assert compare(target, draft).verdict == "different"
    assert compare(target, draft, tokenizer=override).verdict == "identical"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tekken__json": b"{}"}, "there is no `tokenizer.json` of `org/bare` at hand"),
        ({"tokenizer__json": b"{"}, "`tokenizer.json` of `org/bare` cannot be read"),
        ({"tokenizer__json": b"[" * 200_000}, "`tokenizer.json` of `org/bare` cannot be read"),
        ({"tokenizer__json": b'{"model": []}'}, "`tokenizer.json` of `org/bare` cannot be read"),
        ({"tokenizer__json": b"\xff"}, "`tokenizer.json` of `org/bare` cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_said(model: Make, files: dict[str, bytes], reason: str) -> None:
    result = compare(model(document()), model(name="bare", **files))
    assert result.verdict == "not_checked"
    assert (result.reason or "").startswith(reason)


def test_a_file_of_100_mb_is_not_read(model: Make) -> None:
    large = model(tokenizer__json=b"{}")
    path = large.files["tokenizer.json"].path
    assert path is not None
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)  # sparse: it takes no room on the disk
    assert (compare(model(document()), large).reason or "").endswith("is larger than 64 MiB")


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("target", "draft"),
    list(itertools.combinations_with_replacement(("byte_level", "metaspace"), 2)),
)
def test_the_shared_tokens_are_about_those_that_vllm_maps(
    model: Make, tmp_path: Path, target: str, draft: str
) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast
    from vllm.v1.spec_decode.vocab_mapping import VocabMapping

    made = [document(target, size=800), document(draft, size=600)]
    loaded = []
    for place, content in enumerate(made):
        file = tmp_path / f"{place}.json"
        file.write_text(json.dumps(content))
        unknown = content["model"].get("unk_token") or "e"
        loaded.append(PreTrainedTokenizerFast(tokenizer_file=str(file), unk_token=unknown))
    cpu = torch.device("cpu")
    mapping = VocabMapping(*loaded, target_vocab_size=790, draft_vocab_size=700, device=cpu)
    result = compare(model(made[0], vocab_size=790), model(made[1], vocab_size=700))
    assert result.shared_tokens == pytest.approx(mapping.intersection_size, abs=20)
