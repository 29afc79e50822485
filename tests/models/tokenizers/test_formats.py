"""Vocabularies in other files than tokenizer.json mean what their own libraries say."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.errors import FactError
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizercompare import compare
from specserve.models.vocabulary import pieces, read_vocabulary, spelled, vocabulary_file
from tests.models.tokenizers.made import document, lines

Make = Callable[..., ModelFacts]


def varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + varint(high) if high else bytes((low,))


def model_proto(texts: list[str], *, control: tuple[str, ...] = ()) -> bytes:
    """A sentencepiece model: pieces with score and type, then a trainer's settings."""
    found = b""
    for text in texts:
        kind = b"\x03" if text in control else b"\x01"
        piece = b"\x0a" + varint(len(text.encode())) + text.encode() + b"\x15\x00\x00\x80\xbf\x18" + kind
        found += b"\x0a" + varint(len(piece)) + piece
    return found + b"\x12\x02\x18\x05"


def tekken(words: list[bytes], *, specials: int = 10, named: list[str] | None = None) -> dict[str, Any]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    names = named or ["<unk>", "<s>", "</s>"]
    size = len(words) + specials
    return {
        "config": {"default_vocab_size": size, "default_num_special_tokens": specials, "version": "v11"},
        "vocab": vocab,
        "special_tokens": [{"rank": n, "token_str": text, "is_control": True} for n, text in enumerate(names)],
    }  # fmt: skip


def test_a_sentencepiece_model_is_read_in_the_order_of_its_pieces() -> None:
    texts = ["<unk>", "<s>", "</s>", "▁", "e", "▁the", "語", "long" * 60]
    proto = model_proto(texts, control=("<s>", "</s>"))
    assert pieces(proto, source="m") == (texts, frozenset({1, 2}))


@pytest.mark.parametrize(
    "data", [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\xff", b"\x0b", b"\x0a\x03\x0a\x05a", b"x" * 99]
)
def test_what_is_no_sentencepiece_model_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(FactError, match="is not a sentencepiece model"):
        pieces(data, source="m")


def test_a_sentencepiece_model_equals_the_tokenizer_json_made_of_it(model: Make) -> None:
    made = document("metaspace")
    ordered = sorted(made["model"]["vocab"], key=made["model"]["vocab"].__getitem__)
    assert compare(model(made), model(tokenizer__model=model_proto(ordered))).verdict == "identical"


def test_a_tekken_file_equals_the_byte_level_tokenizer_json_made_of_it(model: Make) -> None:
    made = document(size=400)
    ordered = sorted(made["model"]["vocab"], key=made["model"]["vocab"].__getitem__)
    words = [spelled(word) or b"" for word in ordered]
    specials = ["<unk>", "<s>", "</s>", *(f"<SPECIAL_{n}>" for n in range(3, 10))]
    shifted = {word: index + 10 for word, index in made["model"]["vocab"].items()} | dict(
        zip(specials, range(10), strict=True)
    )
    other = {**made, "model": {**made["model"], "vocab": shifted}}
    result = compare(model(tekken__json=tekken(words)), model(other))
    assert (result.verdict, result.reasons) == ("identical", ())


def test_mistrals_own_format_wins_where_its_weights_are_there(model: Make) -> None:
    both = {"tekken__json": tekken([b"a"]), "tokenizer_config__json": {}}
    assert vocabulary_file(model(document(), **both)) == ("tokenizer.json", "tokenizer.json")
    consolidated = model(document(), **both, consolidated__safetensors=b"")
    assert vocabulary_file(consolidated) == ("tekken.json", "tekken")


@pytest.mark.vllm
def test_pieces_are_those_of_the_sentencepiece_library() -> None:
    import sentencepiece

    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=stream, vocab_size=900, hard_vocab_limit=False,
        character_coverage=0.98, byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=stream.getvalue())
    ours, special = pieces(stream.getvalue(), source="m")
    assert ours == [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    assert special == {
        index for index in range(len(ours)) if processor.is_control(index) or processor.is_unknown(index)
    }


@pytest.mark.vllm
def test_a_tekken_vocabulary_is_that_of_mistrals_library(model: Make) -> None:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    words = [bytes((byte,)) for byte in range(256)] + [b"the", b" the", b"ing", "é".encode()]
    content = {**tekken(words, specials=30), "type": None}
    content["config"] |= {"pattern": r"\w+|\s+|[^\w\s]+", "num_vocab_tokens": len(words)}
    facts = model(tekken__json=content)
    path = facts.files["tekken.json"].path
    assert path is not None
    library = Tekkenizer.from_file(path)
    ours = read_vocabulary(facts).tokens
    assert len(ours) == library.n_words
    for index, token in ours.items():
        if index < 30:
            assert token == library.id_to_piece(index)
        else:
            assert spelled(token) == library.id_to_byte_piece(index, SpecialTokenPolicy.KEEP)
    assert json.dumps(sorted(ours)) == json.dumps(list(range(library.n_words)))


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("target", "draft", "verdict"),
    [
        ("tekken_240718.json", "tekken_240911.json", "identical"),
        (
            "mistral_instruct_tokenizer_240323.model.v3",
            "mistral_instruct_tokenizer_241114.model.v7",
            "special_tokens_differ",
        ),
        (
            "mistral_instruct_tokenizer_240216.model.v2",
            "mistral_instruct_tokenizer_240323.model.v3",
            "special_tokens_differ",
        ),
        ("tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "overlap"),
    ],
)
def test_public_tokenizers_of_one_family_are_graded_as_they_serve(
    target: str, draft: str, verdict: str
) -> None:
    import mistral_common

    folder = Path(mistral_common.__file__).parent / "data"

    def facts(file: str) -> ModelFacts:
        path = folder / file
        name = "tekken.json" if file.endswith(".json") else "tokenizer.model"
        known = {name: ModelFile(path.stat().st_size, None, path)}
        return ModelFacts(file, "directory", {"vocab_size": 2**17}, files=known)

    result = compare(facts(target), facts(draft))
    assert result.verdict == verdict
    assert (result.mismatch_by_occurrence == 0) is (verdict != "overlap")
