"""What each id means: the same as the tokenizers library says, for any file that it loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specserve.models.facts import ModelFacts
from specserve.models.vocabulary import read_huggingface, read_vocabulary
from tests.models.tokenizers.made import document, special

words = st.text(alphabet="abĠ▁<>", min_size=1, max_size=3)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram", "wordpiece"])
def test_every_kind_of_model_is_read_as_the_library_reads_it(kind: str) -> None:
    made = document(kind, specials=("<|one|>", "<|two|>"))
    vocab = Tokenizer.from_str(json.dumps(made)).get_vocab(with_added_tokens=True)
    assert {text: index for index, text in read_huggingface(encoded(made)).tokens.items()} == vocab


@given(
    vocab=st.dictionaries(words, st.integers(0, 20), max_size=6),
    added=st.lists(st.tuples(words, st.integers(0, 40), st.booleans()), max_size=6),
)
def test_added_tokens_get_the_ids_that_the_library_gives_them(
    vocab: dict[str, int], added: list[tuple[str, int, bool]]
) -> None:
    made = document(size=300)
    made["model"] |= {"vocab": {"!": 0, **{text: index + 1 for text, index in vocab.items()}}, "merges": []}
    made["added_tokens"] = [special(text, index=index, is_special=flag) for text, index, flag in added]
    ours = read_huggingface(encoded(made)).tokens
    library = Tokenizer.from_str(json.dumps(made))
    twice = len(set(made["model"]["vocab"].values())) < len(made["model"]["vocab"])
    for index, text in ours.items():
        assert twice or library.id_to_token(index) == text


ADDED = {
    "content": "<|new|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
}  # fmt: skip


@pytest.mark.vllm
@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="nothing beside it"),
        pytest.param(
            {"tokenizer_config__json": {"eos_token": "<|one|>", "pad_token": "[PAD]"}}, id="a new pad token"
        ),
        pytest.param(
            {"tokenizer_config__json": {"added_tokens_decoder": {"999": ADDED}, "bos_token": "<|bos|>"}},
            id="a decoder",
        ),
        pytest.param(
            {"tokenizer_config__json": {"additional_special_tokens": ["<|a|>", "e", "<|b|>"]}},
            id="extra tokens",
        ),
        pytest.param(
            {
                "special_tokens_map__json": {
                    "eos_token": "<|eos|>",
                    "unk_token": {"content": "<|unk|>", "lstrip": False},
                }
            },
            id="a map of special tokens",
        ),
        pytest.param({"added_tokens__json": {"<|y|>": 802, "<|x|>": 803}}, id="an old list of added tokens"),
    ],
)
def test_the_files_beside_it_add_what_transformers_adds(
    model: Callable[..., ModelFacts], files: dict[str, Any]
) -> None:
    from transformers import PreTrainedTokenizerFast

    facts = model(document(specials=("<|one|>", "<|two|>")), **files)
    path = facts.files["tokenizer.json"].path
    assert path is not None
    theirs = PreTrainedTokenizerFast.from_pretrained(path.parent).get_vocab()
    assert {text: index for index, text in read_vocabulary(facts).tokens.items()} == theirs
