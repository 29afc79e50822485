"""The sample text: many scripts, code, spaces and numbers, encoded by the target's own tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable

from tokenizers import Tokenizer

from specserve.models.facts import ModelFacts
from specserve.models.sample import counted, encoding, estimated, texts
from specserve.models.vocabulary import needed, read_huggingface
from tests.models.tokenizers.made import document

Make = Callable[..., ModelFacts]


def whole() -> str:
    return "".join(path.read_bytes().decode() for path in texts())


def test_the_text_is_of_the_size_that_was_meant_and_holds_what_it_should() -> None:
    text = whole()
    assert 20_000 <= len(text.encode()) <= 40_000
    scripts = {unicodedata.name(char).split()[0] for char in text if char.isalpha()}
    assert {
        "LATIN",
        "CYRILLIC",
        "GREEK",
        "CJK",
        "HIRAGANA",
        "HANGUL",
        "ARABIC",
        "HEBREW",
        "DEVANAGARI",
        "THAI",
    } <= scripts
    assert all(
        part in text for part in ("\t\t", "\r\n", "        ", "\n\n\n", "0x7fff", "def ", "SELECT", "🙂")
    )


def test_special_tokens_of_public_models_are_not_in_the_text() -> None:
    assert not any(mark in whole() for mark in ("<|", "|>", "[INST]", "<s>", "</s>", "<think>", "<bos>"))


def test_the_child_counts_what_the_library_encodes(model: Make) -> None:
    made = document(size=800)
    with encoding(needed(model(made), "tokenizer.json")) as child:
        counts = counted(child)
    library = Tokenizer.from_str(json.dumps(made))
    expected: Counter[int] = Counter()
    for path in texts():
        expected.update(library.encode(path.read_bytes().decode(), add_special_tokens=False).ids)
    assert counts == expected


def test_a_tokenizer_that_does_not_load_has_no_counts(model: Make) -> None:
    with encoding(needed(model(tokenizer__json=b"{}"), "tokenizer.json")) as child:
        assert counted(child) is None


def test_a_child_that_nobody_waits_for_is_gone(model: Make) -> None:
    with encoding(needed(model(document()), "tokenizer.json")) as child:
        pass
    assert child.returncode is not None


def test_the_estimate_weighs_tokens_about_as_the_encoder_does(model: Make) -> None:
    for kind in ("byte_level", "metaspace"):
        made = document(kind, size=1500)
        with encoding(needed(model(made), "tokenizer.json")) as child:
            real = counted(child)
        assert real is not None
        guess = estimated(read_huggingface(json.dumps(made).encode()))
        apart = (
            sum(abs(real[index] / real.total() - guess[index] / guess.total()) for index in real | guess) / 2
        )
        assert apart < 0.25
