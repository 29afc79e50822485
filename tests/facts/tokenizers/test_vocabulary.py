"""What each id means: the same as the tokenizers library says, for any file that it loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specserve.facts.tokenizers.huggingface import read
from tests.facts.tokenizers.made import document, special

words = st.text(alphabet="abĠ▁<>", min_size=1, max_size=3)


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram", "wordpiece"])
def test_every_kind_of_model_is_read_as_the_library_reads_it(kind: str) -> None:
    made = document(kind, specials=("<|one|>", "<|two|>"))
    vocab = Tokenizer.from_str(json.dumps(made)).get_vocab(with_added_tokens=True)
    assert {text: index for index, text in read(encoded(made)).tokens.items()} == vocab


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
    ours = read(encoded(made)).tokens
    library = Tokenizer.from_str(json.dumps(made))
    twice = len(set(made["model"]["vocab"].values())) < len(made["model"]["vocab"])
    for index, text in ours.items():
        assert twice or library.id_to_token(index) == text
